"""Curves as text: a plot in braille characters, for terminals and logs."""

from collections.abc import Callable, Mapping, Sequence
from math import isfinite

from rich.text import Text

DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""Bits of a braille character, by column and row of its eight dots."""
STYLES = ("bright_black", "green", "blue", "magenta", "yellow", "cyan", "red")
Points = Sequence[tuple[float, float]]


def text_plot(
    curves: Mapping[str, Points],
    *,
    across: Callable[[float], str],
    upward: Callable[[float], str],
    width: int = 60,
    height: int = 12,
) -> Text:
    """Draw curves in `width` times `height` characters, with the ends of both axes and a legend.

    `across` and `upward` write a number of the horizontal and of the vertical axis.
    """
    known = {name: [point for point in points if isfinite(point[1])] for name, points in curves.items()}
    every = [point for points in known.values() for point in points]
    if not every:
        return Text("nothing to draw")
    left, right = min(x for x, _ in every), max(x for x, _ in every)
    low, high = min(y for _, y in every), max(y for _, y in every)
    cells, styles = [[0] * width for _ in range(height)], [[""] * width for _ in range(height)]
    for number, points in enumerate(known.values()):
        for column, value in enumerate(_resampled(points, 2 * width, left, right)):
            if value is None:
                continue
            share = (value - low) / (high - low) if high > low else 0.5
            row = round((1 - share) * (4 * height - 1))
            cells[row // 4][column // 2] |= DOTS[column % 2][row % 4]
            styles[row // 4][column // 2] = STYLES[number % len(STYLES)]
    margin = max(len(upward(low)), len(upward(high)))
    text = Text(no_wrap=True)
    for row in range(height):
        label = upward(high) if row == 0 else upward(low) if row == height - 1 else ""
        text.append(f"{label:>{margin}} ┤")
        for bits, style in zip(cells[row], styles[row], strict=True):
            text.append(chr(0x2800 + bits) if bits else " ", style)
        text.append("\n")
    end = across(right)
    text.append(f"{'':>{margin}} └{across(left):<{width - len(end)}}{end}\n{'':>{margin}}  ")
    for number, name in enumerate(known):
        text.append("━ ", STYLES[number % len(STYLES)])
        text.append(f"{name}   ")
    return text


def _resampled(points: Points, columns: int, left: float, right: float) -> list[float | None]:
    """The values of a curve at evenly spaced places, linearly interpolated; None outside of the curve."""
    values: list[float | None] = []
    step, index = (right - left) / max(columns - 1, 1), 0
    for column in range(columns):
        x = left + column * step
        while index + 1 < len(points) and points[index + 1][0] < x:
            index += 1
        if not points or x < points[0][0] - step / 2 or x > points[-1][0] + step / 2:
            values.append(None)
        elif index + 1 == len(points) or points[index + 1][0] == points[index][0]:
            values.append(points[index][1])
        else:
            (before, low), (after, high) = points[index], points[index + 1]
            share = min(1.0, max(0.0, (x - before) / (after - before)))
            values.append(low + share * (high - low))
    return values
