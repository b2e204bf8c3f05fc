"""All reproductions by name, and what their command leaves behind."""

from collections.abc import Sequence
from pathlib import Path

from experiments.adel_fl import ADEL_FL
from experiments.claims import judged
from experiments.claims_figure import claims_figure
from experiments.delays import DELAYS_STUDY
from experiments.fedasmu import FEDASMU
from experiments.fedasmu_regime import FEDASMU_REGIME
from experiments.leaderboard import LEADERBOARD
from experiments.leaderboard_page import FIGURE, leaderboard_figure, leaderboard_page
from experiments.measurements import Measurement, read_measurements, write_measurements
from experiments.page import figure_file, page
from experiments.reproduction import Reproduction
from experiments.seafl import SEAFL
from offbeat.core.errors import unknown
from offbeat.results.files import replace_file
from offbeat.results.plots import save

CLAIMS = (ADEL_FL, FEDASMU, FEDASMU_REGIME, SEAFL, DELAYS_STUDY)
REPRODUCTIONS = {each.name: each for each in (*CLAIMS, LEADERBOARD)}


def reproduction_named(name: str) -> Reproduction:
    """The reproduction of this name."""
    if name not in REPRODUCTIONS:
        raise unknown("reproduction", name, REPRODUCTIONS)
    return REPRODUCTIONS[name]


def results_file(out: Path, name: str) -> Path:
    """Where the measurements of a reproduction lie."""
    return out / "results" / f"{name}.csv"


def keep(out: Path, reproduction: Reproduction, measurements: Sequence[Measurement]) -> None:
    """Write measurements into the file of a reproduction, in place of older ones of the same runs.

    What the reproduction has no longer goes; what was not measured this time stays.
    """
    path = results_file(out, reproduction.name)
    known = {(each.part, each.method, each.seed): each for each in [*read_measurements(path), *measurements]}
    order = [(part, method) for part in reproduction.parts for method in reproduction.methods(part)]
    kept = sorted(
        (each for each in known.values() if (each.part, each.method) in order),
        key=lambda each: (order.index((each.part, each.method)), each.seed),
    )
    write_measurements(path, kept)


def write_pages(out: Path) -> None:
    """Write the pages and their figures from the files of measurements."""
    found = {name: read_measurements(results_file(out, name)) for name in REPRODUCTIONS}
    replace_file(out / "reproduction.md", page(CLAIMS, found).encode())
    for each in CLAIMS:
        figure = claims_figure([judged(claim, found[each.name]) for claim in each.claims])
        if figure is not None:
            save(figure, out / figure_file(each))
    ranked = found[LEADERBOARD.name]
    replace_file(out / "leaderboard.md", leaderboard_page(ranked).encode())
    if ranked:
        save(leaderboard_figure(ranked), out / FIGURE)
