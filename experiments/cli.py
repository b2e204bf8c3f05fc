"""The command that holds papers' claims against runs of ours."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.markdown import Markdown
from rich.table import Table

from offbeat.cli.base import Address, console
from offbeat.cli.choosing import check_optuna
from offbeat.cli.progress import bars, cluster_line
from offbeat.core.errors import Interrupted, InvalidInput

if TYPE_CHECKING:
    from experiments.measurements import Measurement
    from experiments.reproduction import Reproduction

CACHE = Path("runs") / "cache"
WIDE = 3
"""How many measures a table has in the terminal where no claim says which ones matter; the pages have all."""


def reproduce(
    name: Annotated[
        str, typer.Argument(help="adel-fl, fedasmu, fedasmu-regime, seafl, delays or leaderboard.", metavar="NAME")
    ],
    quick: Annotated[bool, typer.Option("--quick", help="Few parts, short runs, two seeds, embedded data.")] = False,
    full: Annotated[
        bool, typer.Option("--full", help="Everything; it may take hours, and any kill only pauses it.")
    ] = False,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Directory with the data sets that are not embedded (mnist/, fashion-mnist/, cifar-10/ ...)."
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option(help="Directory for the pages and, in its results/, the measurements (of the full form).")
    ] = Path("reproductions"),
    cache: Annotated[Path, typer.Option(help="Directory of finished runs, which all reproductions share.")] = CACHE,
    part: Annotated[str, typer.Option(help="Only the part of this name, or those with this text in their names.")] = "",
    seeds: Annotated[int | None, typer.Option(min=1, help="How many seeds, from 0 on.")] = None,
    rate: Annotated[
        float | None,
        typer.Option(help="delays: this learning rate in place of the chosen one. Its results are shown, not kept."),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time.")] = 1,
    address: Address = None,
) -> None:
    """Hold a paper's claims against runs: measured beside published, with seeds, spread and a verdict by a stated rule.

    The full form goes on where it was stopped when it is given again. It writes its measurements after every method,
    and the pages at the end or when it is interrupted. What the measurements in `--out` have already, from whatever
    machine, is not run again. With neither `--quick` nor `--full` it shows what has been measured, and writes the pages
    anew.
    """
    from experiments.measurements import read_measurements
    from experiments.registry import keep, reproduction_named, results_file, write_pages
    from experiments.reproduction import QUICK, Form
    from experiments.run_cases import reproduce

    if quick and full:
        raise InvalidInput("give one of --quick and --full")
    chosen = reproduction_named(name)
    if name == "leaderboard" and (quick or full):
        check_optuna()
    if not quick and not full:
        measurements = read_measurements(results_file(out, name))
        if not measurements:
            raise InvalidInput(f"{results_file(out, name)} has no measurements yet: give --quick or --full")
        write_pages(out)
        _show(chosen, measurements)
        return
    if rate is not None and name != "delays":
        raise InvalidInput("--rate is for delays; the others choose a learning rate for each method")
    form = replace(Form(seeds=chosen.seeds, data=data) if full else QUICK, rate=rate)
    form = form if seeds is None else replace(form, seeds=seeds)
    kept = full and rate is None
    if full and data is None and chosen.needs:
        console.print(f"Parts that need {' or '.join(chosen.needs)} are left out: no --data is given.", style="dim")
    measurements = []
    with bars() as shown, cluster_line(shown):
        bar = shown.add_task(name, total=1.0, note="")
        begun = reproduce(
            chosen,
            form,
            cache,
            part=part,
            jobs=jobs,
            address=address,
            known=read_measurements(results_file(out, name)) if kept else (),
            watch=lambda what, share: shown.update(bar, completed=share, note=what),
        )
        try:
            for measurements in begun:
                if kept:
                    keep(out, chosen, measurements)
        except Interrupted as error:
            if kept:
                write_pages(out)
            sentence = f"interrupted; finished runs are in {cache}: give the same command again to go on"
            raise Interrupted(sentence, number=error.number) from None
    _show(chosen, measurements)
    if quick:
        console.print(
            f"This was the quick form: runs of {100 * form.length:g} % of the length, {form.seeds} seeds. It shows how "
            "claims are held against runs; what the full form found is on the page 'What reproduces'.",
            style="bold",
            highlight=False,
        )
    if kept:
        write_pages(out)
        console.print(f"Measurements in {results_file(out, name)}, pages in {out}")


def _show(chosen: "Reproduction", measurements: "list[Measurement]") -> None:
    from experiments.claims import RULE, judged
    from experiments.tables import part_lines

    measured = {each.part for each in measurements}
    claimed = {claim.measure for claim in chosen.claims} or set(list(chosen.shown)[:WIDE])
    fits = replace(chosen, shown={name: title for name, title in chosen.shown.items() if name in claimed})
    for part in (each for each in chosen.parts if each in measured):
        _print(part, part_lines(fits, part, measurements))
    if lines := chosen.in_short(measurements):
        _print("In short", [list(row) for row in zip(*lines, strict=True)])  # the questions are long: one a line
    if remark := chosen.remark(measurements):
        console.print(Markdown(remark))
    for each in (judged(claim, measurements) for claim in chosen.claims):
        if each.seeds:
            claim = each.claim
            console.print(f"{claim.where}. {claim.says}.", style="bold", highlight=False)
            console.print(
                f"  Published: {claim.published}. Here: {each.measured}, {each.seeds} seeds. -> {each.verdict}",
                highlight=False,
            )
    console.print(RULE.replace("**", "").replace("\n", " "), style="dim", highlight=False)


def _print(title: str, lines: list[list[str]]) -> None:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for heading in lines[0]:
        table.add_column(heading, overflow="fold")
    for line in lines[1:]:
        table.add_row(*(cell.replace("**", "") for cell in line))
    console.print(table)
