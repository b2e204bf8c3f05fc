"""The command that checks implementations: golden numbers of every rule, conformance of an own policy."""

import json
from typing import Annotated, Any

import typer
from rich.table import Column, Table

from offbeat.cli.base import check_format, console, print_table
from offbeat.cli.next_commands import next_step


def verify(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Algorithms (default: all), or own policies as module:Class."),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(metavar="MODULE:ADAPTER", help="Check the implementations that this adapter makes, not ours."),
    ] = None,
    form: Annotated[
        str | None,
        typer.Option("--format", metavar="FORMAT", help="Print as `markdown`, `latex`, `csv` or `json`."),
    ] = None,
) -> None:
    """Check implementations against golden numbers: uploads with bases and staleness, and the model that must come out.

    Names the first step that deviates; exit code 1 if there is one. `--against` checks any implementation through an
    adapter of about ten lines (docs/conformance.md). For an own policy (`my_policy:Mine`) it checks the properties that
    every policy must have: determinism, resume, bounded memory, no hang after losses.
    """
    from offbeat.algorithms import known_name, policy_class

    if form != "json":
        check_format(form)
    own = [name for name in names or () if ":" in name]
    named = [known_name(name) for name in names or () if ":" not in name]
    results = [result for name in own for result in _conformance(name, policy_class(name)())]
    if named or not own:
        results += _traces(named, against)
    if form == "json":
        print(json.dumps(results, indent=1))
    else:
        _print(results, form)
    if any(result["outcome"] == "deviates" for result in results):
        raise typer.Exit(1)
    next_step("verify", form)


def _conformance(name: str, policy: Any) -> list[dict[str, str]]:
    from offbeat.testing.conformance import conformance

    return [
        _result(
            name, promise, "holds" if failure is None else "deviates", "" if failure is None else f"{name}: {failure}"
        )
        for promise, failure in conformance(policy)
    ]


def _traces(names: list[str], against: str | None) -> list[dict[str, str]]:
    from offbeat.references import resolve
    from offbeat.testing.verification import checked, load_traces, our_adapter

    adapter = our_adapter if against is None else resolve(against)
    return [
        _result(trace.algorithm, trace.name, *checked(trace, adapter), trace.source) for trace in load_traces(names)
    ]


def _result(name: str, check: str, outcome: str, words: str, source: str = "") -> dict[str, str]:
    return {"algorithm": name, "check": check, "outcome": outcome, "words": words, "source": source}


def _print(results: list[dict[str, str]], form: str | None) -> None:
    count = {each: sum(result["outcome"] == each for result in results) for each in ("holds", "deviates", "skipped")}
    algorithms = len({result["algorithm"] for result in results})
    counts = f"{count['holds']} hold, {count['deviates']} deviate, {count['skipped']} skipped"
    caption = f"{len(results)} checks of {algorithms} algorithm{'s' * (algorithms > 1)}: {counts}."
    table = Table(Column("algorithm", no_wrap=True), "trace or property", "outcome", caption=caption)
    for result in results:
        reason = f" ({result['words']})" if result["outcome"] == "skipped" else ""
        table.add_row(result["algorithm"], result["check"], result["outcome"] + reason)
    print_table(table, form=form)
    for result in results:
        if result["outcome"] == "deviates" and form is None:
            console.print(result["words"], soft_wrap=True)
