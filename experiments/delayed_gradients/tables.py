"""Tables in the shape of the paper's, each number beside the printed one: in a terminal, Markdown, CSV, a figure."""

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isnan
from typing import NamedTuple

from matplotlib.figure import Figure
from rich import box
from rich.table import Table

from offbeat.results.plots import COLOURS, FAINT

SHOWN_LOSS = 4.0
"""Higher losses, of runs that exploded, are above the figure's edge."""


class Cell(NamedTuple):
    """A number of ours, its standard deviation over runs (nan: a single one), and the paper's."""

    here: float
    spread: float
    paper: float


@dataclass(frozen=True, kw_only=True)
class PaperTable:
    """One of the paper's tables."""

    number: str
    title: str
    percent: bool
    columns: list[str]
    rows: dict[str, list[Cell]]

    @property
    def heading(self) -> str:
        """The number and title of the table."""
        over = "" if self.number == "II" else " by mean delay of client 1"
        return f"Table {self.number}. {self.title}{over}"

    def lines(self) -> Iterator[list[str]]:
        """Two lines of text for each row: ours and the paper's."""
        for name, cells in self.rows.items():
            yield [name, "here", *(self._here(cell) for cell in cells)]
            yield ["", "paper", *(self._number(cell.paper) for cell in cells)]

    def _here(self, cell: Cell) -> str:
        spread = "" if isnan(cell.spread) else f" ± {self._number(cell.spread).removesuffix(' %')}"
        return self._number(cell.here) + spread

    def _number(self, value: float) -> str:
        if self.percent:
            return f"{100 * value:.2f} %"
        return f"{value:.4f}" if abs(value) < 1000 else f"{value:.0e}"  # a run that exploded

    def rich_table(self) -> Table:
        """The table for the terminal."""
        table = Table("", "", *self.columns, title=self.heading, title_justify="left", box=box.SIMPLE_HEAD)
        for number, line in enumerate(self.lines()):
            table.add_row(*line, style="dim" if number % 2 else "")
        return table


def markdown(tables: Sequence[PaperTable], verdict: str, notes: Sequence[str]) -> str:
    """The tables of the study as a Markdown document, after its result and its notes."""
    parts = ["# Delays: SFL, AUDG, PSURDG\n", verdict, "±: standard deviation over Monte-Carlo runs.", *notes]
    for table in tables:
        lines = [["", "", *table.columns], ["---"] * (2 + len(table.columns)), *table.lines()]
        parts.append(f"\n**{table.heading}**\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines))
    return "\n".join(parts) + "\n"


def csv_text(tables: Sequence[PaperTable]) -> str:
    """Plain numbers, one line per cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["table", "row", "column", "here", "std", "paper"])
    for table in tables:
        for name, cells in table.rows.items():
            for column, cell in zip(table.columns, cells, strict=True):
                spread = "" if isnan(cell.spread) else cell.spread
                writer.writerow([table.number, name, column, cell.here, spread, cell.paper])
    return text.getvalue()


def figure(tables: Sequence[PaperTable]) -> Figure:
    """The final training loss over the mean delay of client 1, here and in the paper, a panel for each setting."""
    shown = [table for table in tables if "Difference" in table.rows]
    drawn = Figure(figsize=(3.1 * len(shown), 3.8), layout="constrained")
    for axes, table in zip(drawn.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
        delays = [float(column) for column in table.columns]
        for name, colour in (("AUDG", COLOURS[0]), ("PSURDG", COLOURS[1])):
            cells = table.rows[name]
            spreads = [0.0 if isnan(cell.spread) else cell.spread for cell in cells]
            axes.errorbar(
                delays,
                [c.here for c in cells],
                yerr=spreads,
                color=colour,
                marker="o",
                capsize=3,
                label=f"{name}, here",
            )
            axes.plot(delays, [c.paper for c in cells], color=colour, linestyle="--", label=f"{name}, paper")
        axes.set_title(table.title.split(", ")[1], fontsize=10)
        axes.set_xlabel("mean delay of client 1")
        axes.set_xticks(delays)
        axes.set_ylim(0.0, min(axes.get_ylim()[1], SHOWN_LOSS))
        axes.grid(color=FAINT, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    drawn.axes[0].set_ylabel("final training loss")
    drawn.legend(*drawn.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    return drawn
