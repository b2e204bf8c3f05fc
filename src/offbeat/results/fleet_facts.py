"""What is known of the devices before a run starts: samples, speeds and labels, in `fleet.json`, for reports."""

from pathlib import Path

import msgspec
from msgspec import Struct

MOST_DEVICES = 10_000
"""Largest fleet whose devices are described."""


class FleetFacts(Struct, kw_only=True, eq=False):
    """The devices of a run, as lists over devices; an empty list if a thing is not known."""

    names: list[str] = []
    samples: list[int] = []
    samples_per_second: list[float] = []
    """Mean speed through one layer of the model."""
    communication_seconds: list[float] = []
    """Mean time to download and upload the model."""
    labels: list[str] = []
    """Names of the labels."""
    counts: list[list[int]] = []
    """Samples of each label, for each device."""
    remark: str = ""
    """Says what is counted if it is not labels."""

    @property
    def pace(self) -> list[float]:
        """Seconds that each device trains on all of its samples once; empty if the speeds are not known.

        >>> FleetFacts(samples=[10, 10], samples_per_second=[2.0, 5.0]).pace
        [5.0, 2.0]
        """
        return [number / speed for number, speed in zip(self.samples, self.samples_per_second, strict=False) if speed]

    def encode(self) -> bytes:
        """The facts as JSON."""
        return msgspec.json.encode(self)


def read_fleet(directory: Path) -> FleetFacts | None:
    """What is known of the devices of a run in advance; None if it has no readable fleet.json."""
    try:
        return msgspec.json.decode((directory / "fleet.json").read_bytes(), type=FleetFacts)
    except (OSError, msgspec.DecodeError):
        return None
