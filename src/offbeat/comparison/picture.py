"""The picture of a comparison: how accurate its algorithms were when, and what their devices did meanwhile."""

from collections.abc import Sequence
from pathlib import Path

from offbeat.results.comparison import Comparison
from offbeat.results.occupation import overview_figure, read_timeline
from offbeat.results.plots import save
from offbeat.running.directory import read_finished


def draw_overview(root: Path, algorithms: Sequence[str], out: Path, until: float) -> None:
    """Draw the finished runs under this directory, and the devices of these algorithms' first runs until some time."""
    folders = sorted(path.parent for path in root.glob("*/summary.json"))
    runs = {folder: read_finished(folder).entry for folder in folders}
    firsts = {name: next(folder for folder, entry in runs.items() if entry.algorithm == name) for name in algorithms}
    timelines = {name: read_timeline(folder / "timeline.json") for name, folder in firsts.items()}
    save(overview_figure(Comparison(list(runs.values())), timelines, until), out)
