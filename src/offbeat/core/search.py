"""Where a search looks for the best value of a setting: each algorithm says so beside its settings."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`: whole ones if both are.

    >>> print(Range(1, 20, log=True, at_most="concurrency"), Range(0.1, 10.0, relative=True), sep="; ")
    1 to 20, on a log scale, at most concurrency; 0.1 to 10 times the experiment's
    """

    low: float
    high: float
    log: bool = False
    """Whether the search looks as closely between 1 and 2 as between 10 and 20."""
    relative: bool = False
    """Whether the ends are multiples of the experiment's own value."""
    at_most: str = ""
    """Another setting of the same algorithm that this one may not exceed."""

    @property
    def whole(self) -> bool:
        """Whether it is a range of whole numbers."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    def __str__(self) -> str:
        times = " times the experiment's" if self.relative else ""
        scale = ", on a log scale" if self.log else ""
        most = f", at most {self.at_most}" if self.at_most else ""
        return f"{self.low:g} to {self.high:g}{times}{scale}{most}"


@dataclass(frozen=True)
class Choice:
    """A setting that takes one of some values.

    >>> str(Choice("constant", "hinge"))
    "'constant' or 'hinge'"
    """

    values: tuple[str | bool, ...]

    def __init__(self, *values: str | bool) -> None:
        object.__setattr__(self, "values", values)

    def __str__(self) -> str:
        return " or ".join(repr(value) for value in self.values)


class SearchSpace(dict[str, Range | Choice]):
    """Where to look for the best value of each setting; a setting that is not in it stays as it is.

    >>> SearchSpace(SearchSpace(mu=Range(0.1, 10.0)), temperature=Range(0.1, 1.0)).keys()
    dict_keys(['mu', 'temperature'])
    """
