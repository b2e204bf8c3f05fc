"""The picture of a comparison: how accurate its algorithms were when, and what their devices did meanwhile."""

from collections.abc import Sequence
from pathlib import Path

from offbeat.results.comparison import Comparison
from offbeat.results.occupation import overview_figure, read_timeline
from offbeat.results.plots import save
from offbeat.running.directory import read_finished


def draw_overview(root: Path, algorithms: Sequence[str], shown: Sequence[str], until: float, out: Path) -> None:
    """Draw the finished runs of these algorithms under a directory, and what the devices of some did until a time.

    The devices are those of the run with the lowest seed.
    """
    runs = [(path.parent, read_finished(path.parent)) for path in root.glob("*/summary.json")]
    runs = sorted(
        (each for each in runs if each[1].algorithm in algorithms),
        key=lambda each: (algorithms.index(each[1].algorithm), each[1].seed),
    )
    firsts = {name: next(folder for folder, entry in runs if entry.algorithm == name) for name in shown}
    timelines = {name: read_timeline(folder / "timeline.json") for name, folder in firsts.items()}
    save(overview_figure(Comparison([entry for _, entry in runs]), timelines, until), out)
