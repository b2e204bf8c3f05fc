"""The command line of a study: `python -m experiments.NAME`."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.markdown import Markdown
from rich.table import Table

from experiments.harness import pages
from experiments.harness.claims import RULE
from experiments.harness.measurements import Measurement, read_measurements
from experiments.harness.running import run_study
from experiments.harness.study import QUICK, Form, Study
from experiments.harness.tables import part_lines
from offbeat import Interrupted, InvalidInput, OffbeatError

CACHE = Path("runs") / "cache"
WIDE = 3
"""Measures per table in the terminal for a study without claims; the tables beside the pages have all."""
console, messages = Console(), Console(stderr=True)


def main(study: Study) -> None:
    """Run the command line of a study; expected errors are printed as one sentence."""
    try:
        command_line(study)(prog_name=f"python -m {study.module}")
    except Interrupted as error:
        _print_error(error)
        sys.exit(128 + error.number)
    except OffbeatError as error:
        _print_error(error)
        sys.exit(2 if isinstance(error, InvalidInput) else 1)


def _print_error(error: Exception) -> None:
    messages.print(f"error: {error}", soft_wrap=True, highlight=False, markup=False, style="bold red")


def command_line(study: Study) -> typer.Typer:
    """The command of one study."""
    app = typer.Typer(add_completion=False, rich_markup_mode="markdown")

    @app.command(help=f"{study.title}. {HELP}")
    def command(
        quick: Annotated[
            bool, typer.Option("--quick", help="Few parts, short runs, two seeds, embedded data.")
        ] = False,
        full: Annotated[
            bool, typer.Option("--full", help="All parts and seeds. Takes hours; continues after an interruption.")
        ] = False,
        data: Annotated[
            Path | None,
            typer.Option(help="Directory of data sets that are not embedded (fashion-mnist/, cifar-10/, ...)."),
        ] = None,
        out: Annotated[
            Path, typer.Option(help="Directory of the measurements (results/) and pages (experiments/).")
        ] = Path("docs"),
        cache: Annotated[Path, typer.Option(help="Directory of finished runs, shared by all studies.")] = CACHE,
        headline: Annotated[
            bool,
            typer.Option("--headline", help="The full form of the methods in docs/experiments/index.md's first list."),
        ] = False,
        part: Annotated[str, typer.Option(help="Run only the parts whose names contain this text.")] = "",
        seeds: Annotated[int | None, typer.Option(min=1, help="Number of seeds, counted from 0.")] = None,
        rate: Annotated[
            float | None,
            typer.Option(help="delays only: use this learning rate. The results are printed and not stored."),
        ] = None,
        jobs: Annotated[int, typer.Option(min=1, help="Concurrent runs.")] = 1,
        address: Annotated[
            str | None, typer.Option(help="Address of a Ray cluster that carries out the runs, or `auto` or `local`.")
        ] = None,
    ) -> None:
        if quick and (full or headline):
            raise InvalidInput("--quick excludes --full and --headline: give one of them")
        if not quick and not full and not headline:
            _show_again(study, out)
            return
        if rate is not None and not study.takes_rate:
            raise InvalidInput(f"--rate: {study.name} chooses a learning rate for each method; only delays takes one")
        if study.name == "leaderboard" and find_spec("optuna") is None:
            raise InvalidInput("the leaderboard needs Optuna, which is not installed: pip install 'offbeat[tune]'")
        form = replace(QUICK if quick else Form(seeds=study.seeds, data=data), rate=rate)
        form = form if seeds is None else replace(form, seeds=seeds)
        _run(study, form, out, cache, part=part, headline=headline, jobs=jobs, address=address)

    return app


HELP = """\
`--full` and `--headline` store their measurements after every method and write the pages at the end or when
interrupted; measured runs are not run again, so `--headline --seeds N` adds seeds. Without `--quick`, `--full` and
`--headline`, it prints the stored measurements and writes the pages again.
"""


def _show_again(study: Study, out: Path) -> None:
    measurements = read_measurements(pages.results_file(out, study))
    if not measurements:
        raise InvalidInput(f"{pages.results_file(out, study)} has no measurements: give --quick or --full")
    pages.write_pages(out)
    show(study, measurements)


def _run(
    study: Study, form: Form, out: Path, cache: Path, *, part: str, headline: bool, jobs: int, address: str | None
) -> None:
    stored = form.full and form.rate is None
    if form.full and form.data is None and study.needs:
        messages.print(f"Without --data, parts that need {' or '.join(study.needs)} are left out.", highlight=False)

    def watch(names: str, done: int, total: int) -> None:
        messages.print(f"{done} of {total} done; running {names}", highlight=False, markup=False)

    measurements: list[Measurement] = []
    known = read_measurements(pages.results_file(out, study)) if stored else ()
    try:
        for measurements in run_study(
            study, form, cache, part=part, headline=headline, jobs=jobs, address=address, known=known, watch=watch
        ):
            if stored:
                pages.keep(out, study, measurements)
    except Interrupted as error:
        if stored:
            pages.write_pages(out)
        sentence = f"interrupted; finished runs are in {cache}: repeat the command to continue"
        raise Interrupted(sentence, number=error.number) from None
    show(study, measurements)
    if not form.full:
        console.print(
            f"Quick form: {100 * form.length:g} % of the length, {form.seeds} seeds. It shows how claims are judged; "
            f"the results of the full form are in docs/{pages.PAGES}/{study.page or study.name}.md.",
            style="bold",
            highlight=False,
        )
    if stored:
        pages.write_pages(out)
        console.print(f"Measurements: {pages.results_file(out, study)}. Pages: {out / pages.PAGES}")


def show(study: Study, measurements: Sequence[Measurement]) -> None:
    """Print the tables, findings and claims of a study, as far as it is measured."""
    claimed = {claim.measure for claim in study.claims} or set(list(study.shown)[:WIDE])
    shown = {name: title for name, title in study.shown.items() if name in claimed}
    measured = {(each.part, each.method) for each in measurements}
    parts = {
        part: [method for method in methods if (part, method) in measured] for part, methods in study.parts.items()
    }
    for part, methods in parts.items():
        if methods:
            _print(part, part_lines(replace(study, shown=shown, parts=parts), part, measurements))
    if findings := study.findings(measurements):
        console.print(Markdown(findings))
    for each in pages.Results(study, measurements).verdicts:
        if each.seeds:
            claim = each.claim
            console.print(" ".join(filter(None, (claim.where and f"{claim.where}.", f"{claim.says}."))), style="bold")
            verdict = "" if claim.kind == "measured" else f" Published: {claim.published}. -> {each.verdict}"
            more = f" (about {each.needed_text} seeds to decide)" if each.verdict == "undecided" else ""
            console.print(f"  Measured: {each.measured}, {each.seeds} seeds.{verdict}{more}", highlight=False)
    if study.claims:
        console.print(RULE.replace("*", "").replace("\n", " "), style="dim", highlight=False)


def _print(title: str, lines: Sequence[Sequence[str]]) -> None:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for heading in lines[0]:
        table.add_column(heading, overflow="fold")
    for line in lines[1:]:
        table.add_row(*line)
    console.print(table)
