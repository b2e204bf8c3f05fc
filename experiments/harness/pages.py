"""The pages, tables and figures of all studies, made from their files of measurements alone."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path

from matplotlib.figure import Figure

from experiments import STUDIES
from experiments.harness.claims import RULE, VERDICTS, Judged, Verdict, judged
from experiments.harness.figure import claims_figure
from experiments.harness.measurements import Measurement, read_measurements, write_measurements
from experiments.harness.study import Study
from experiments.harness.tables import claim_lines, csv_table, markdown_table, part_lines
from offbeat.results.files import replace_file
from offbeat.results.plots import save

PLURAL: dict[Verdict, str] = {
    "agrees": "agree",
    "contradicts": "contradict",
    "undecided": "are undecided",
    "not yet run": "are not yet run",
}
PAGES = "experiments"
"""The directory of the pages below `--out`."""


@dataclass(frozen=True)
class Results:
    """A study with its measurements."""

    study: Study
    measurements: Sequence[Measurement]

    @cached_property
    def verdicts(self) -> list[Judged]:
        """All claims with their verdicts."""
        return [judged(claim, self.measurements) for claim in self.study.claims]

    @property
    def counted(self) -> list[Verdict]:
        """The verdicts without those on comparisons that claim nothing."""
        return [each.verdict for each in self.verdicts if each.claim.kind != "measured"]

    @property
    def headlines(self) -> list[Judged]:
        """The claims that the page and the figure show."""
        return [each for each in self.verdicts if each.claim.headline]

    def figure(self) -> Figure | None:
        """Draw the figure; None if there is nothing to draw."""
        draw = self.study.figure
        return claims_figure(self.headlines) if draw is None else draw(self.measurements)

    @property
    def has_figure(self) -> bool:
        """Whether there is anything to draw."""
        return bool(self.measurements) and (self.study.figure is not None or any(e.estimate for e in self.headlines))


def all_studies() -> list[Study]:
    """All studies, in the order of the overview."""
    return [import_module(f"experiments.{name}").STUDY for name in STUDIES]


def results_file(out: Path, study: Study) -> Path:
    """The file of a study's measurements."""
    return out / "results" / f"{study.name}.csv"


def keep(out: Path, study: Study, measurements: Sequence[Measurement]) -> None:
    """Write measurements into the file of a study, replacing those of the same part, method and seed.

    Other earlier measurements are kept, unless the study no longer has their part or method.
    """
    path = results_file(out, study)
    known = {(each.part, each.method, each.seed): each for each in [*read_measurements(path), *measurements]}
    order = [(part, method) for part, methods in study.parts.items() for method in methods]
    kept = sorted(
        (each for each in known.values() if (each.part, each.method) in order),
        key=lambda each: (order.index((each.part, each.method)), each.seed),
    )
    write_measurements(path, kept)


def write_pages(out: Path) -> None:
    """Write all pages, tables and figures from the files of measurements."""
    found = [Results(study, read_measurements(results_file(out, study))) for study in all_studies()]
    (out / PAGES).mkdir(parents=True, exist_ok=True)
    for name, text in texts(found).items():
        replace_file(out / PAGES / name, text.encode())
    for each in found:
        figure = each.figure()
        if figure is not None:
            save(figure, out / PAGES / figure_file(each.study))


def texts(found: Sequence[Results]) -> dict[str, str]:
    """The pages and CSV tables, by file name."""
    made = {"index.md": overview(found)}
    for each in found:
        name = each.study.name
        if not each.study.page:
            made[f"{name}.md"] = page([each, *(other for other in found if other.study.page == name)])
        if each.study.claims:
            made[f"{name}-claims.csv"] = csv_table(claim_lines(each.verdicts))
        made[f"{name}-methods.csv"] = csv_table(method_lines(each.study, each.measurements))
    return made


def method_lines(study: Study, measurements: Sequence[Measurement]) -> list[list[str]]:
    """A heading, and the measures of all methods in all parts."""
    measured = [part for part in study.parts if any(each.part == part for each in measurements)]
    lines = [(part, part_lines(study, part, measurements)) for part in measured]
    columns = list(dict.fromkeys(title for _, (heading, *_) in lines for title in heading))
    return [["part", *columns]] + [
        [part, *(dict(zip(heading, line, strict=True)).get(title, "") for title in columns)]
        for part, (heading, *rows) in lines
        for line in rows
    ]


def figure_file(study: Study) -> str:
    """The file name of a study's figure."""
    return f"{study.name}.png"


# Markdown ------------------------------------------------------------------------------------------------------------


def overview(found: Sequence[Results]) -> str:
    """The overview: the headline claims, and how many claims of each study have which verdict."""
    top = [(each.study, judged) for each in found for judged in each.verdicts if judged.claim.top]
    (claim, _, *heading), *rows = claim_lines([judged for _, judged in top])
    links = [_link(study) for study, _ in top]
    headlines = [["study", claim, *heading]]
    headlines += [[link, says, *row] for link, (says, _, *row) in zip(links, rows, strict=True)]
    shown = [verdict for verdict in VERDICTS if any(verdict in each.counted for each in found)]
    lines = [["study", "seeds", *shown]]
    for each in found:
        if each.study.claims:
            counts = [str(each.counted.count(verdict)) for verdict in shown]
            lines.append([_link(each.study, each.study.title), str(each.study.seeds), *counts])
    own = ", ".join(_link(each.study) for each in found if not each.study.claims)
    parts = [
        "# Published claims, measured",
        "Do published claims hold in our runs? The headline claims of the papers:",
        markdown_table(headlines),
        "`python -m experiments.NAME --headline --seeds N` adds seeds to the methods of this list. All claims, counted "
        "by verdict:",
        markdown_table(lines),
        *([f"Our own questions: {own}."] if own else []),
        "**Verdicts.** " + RULE.replace("\n", " "),
        "**Run a study** from the root of a checkout:",
        "```bash\npython -m experiments.seafl --quick            # minutes, embedded data, two seeds\n"
        "python -m experiments.seafl --full --out DIR   # hours; continues if interrupted\n```",
    ]
    return "\n\n".join(parts) + "\n"


def _link(study: Study, title: str = "") -> str:
    """The title, by default a short one, linked to the page of the study."""
    return f"[{title or _short(study.title)}]({study.page or study.name}.md)"


def _short(title: str) -> str:
    """The methods that a title names."""
    return title.partition(":")[0].partition(" under")[0]


def page(found: Sequence[Results]) -> str:
    """The page of a paper: one section per study, the first of which gives the page its title."""
    return "\n\n".join(section(each, level=min(number, 2)) for number, each in enumerate(found, 1)) + "\n"


def section(results: Results, level: int = 1) -> str:
    """Question, answer, figure, table, setup and command of a study."""
    study, measurements = results.study, results.measurements
    answer = study.answer
    if study.claims:
        counts = [f"{results.counted.count(it)} {PLURAL.get(it, it)}" for it in VERDICTS if it in results.counted]
        answer += f" Of {len(results.counted)} claims, {', '.join(counts)}."
    parts = [
        f"{'#' * level} {study.title}",
        f"*{study.paper}*",
        f"**Question.** {study.question}",
        f"**Answer.** {answer}",
        study.findings(measurements),
        f"![{study.title}]({figure_file(study)})" if results.has_figure else "",
        _headlines(results.headlines) if study.table is None else study.table(measurements),
        f"**Setup.** {study.setup}",
        _command(study),
    ]
    if study.pending:
        parts.append(f"**Not yet run.** {study.pending}")
    if study.outdated and measurements:
        parts.append("**Outdated.** " + " ".join(f"{name}: {how}" for name, how in study.outdated.items()))
    if lacking := missing(study, measurements):
        parts.append(f"**Not yet run with {study.seeds} seeds:** {lacking}.")
    return "\n\n".join(filter(None, parts))


def _headlines(verdicts: Sequence[Judged]) -> str:
    """The headline claims as a table; the CSV table has more columns."""
    heading, *lines = claim_lines(verdicts)
    if not lines:
        return ""
    wanted = [heading.index(title) for title in ("claim", "published", "measured", "verdict", "seeds to decide")]
    return markdown_table([[line[column] for column in wanted] for line in (heading, *lines)])


def _command(study: Study) -> str:
    """The command that repeats a study, and its tables."""
    tables = [*(["claims"] if study.claims else []), "methods"]
    links = [f"[{name}]({study.name}-{name}.csv)" for name in tables] + [f"[runs](../results/{study.name}.csv)"]
    data = " --data DIR" if study.needs else ""
    return (
        f"**Repeat it.** `python -m {study.module} --full --out DIR{data}`, {study.seeds} seeds. "
        f"Tables: {', '.join(links)}."
    )


def missing(study: Study, measurements: Sequence[Measurement]) -> str:
    """The methods that lack seeds, with the parts in which they do; methods that lack the same parts share a clause."""
    count = Counter((each.part, each.method) for each in measurements)
    parts_of: dict[str, list[str]] = {}
    for part, methods in study.parts.items():
        lacking = [method for method in methods if count[part, method] < study.seeds]
        for method in ["all methods"] if len(lacking) == len(methods) else lacking:
            parts_of.setdefault(method, []).append(part)
    methods_of: dict[str, list[str]] = {}
    for method, parts in parts_of.items():
        methods_of.setdefault(", ".join(parts), []).append(method)
    return "; ".join(f"{', '.join(methods)} ({parts})" for parts, methods in methods_of.items())
