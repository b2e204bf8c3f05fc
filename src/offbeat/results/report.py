"""The report: one self-contained HTML page with findings in words, tables, figures and settings."""

import io
from collections.abc import Iterable, Sequence
from html import escape
from math import inf
from statistics import median

import matplotlib
from matplotlib.figure import Figure

from offbeat.results.algorithm_results import AlgorithmResults, final_text, seeds_text, time_text
from offbeat.results.comparison import BASELINE, Comparison
from offbeat.results.metric import TargetMetric, amount, megabytes
from offbeat.results.plots import COMPARISON_FIGURES, run_figure
from offbeat.results.result import Result

STYLE = """
:root { color-scheme: light dark; --ink: #222; --faint: #6b6b6b; --line: #ddd; --page: #fff; --mark: #e8f5ee; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e6e6; --faint: #a0a0a0; --line: #3a3a3a; --page: #161616; --mark: #17352a; }
}
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 68rem; color: var(--ink); background: var(--page);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 1rem; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
.findings { max-width: 46rem; font-size: 1.05rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .92rem; font-variant-numeric: tabular-nums; width: 100%; }
th, td { padding: .4rem .7rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { font-weight: 600; vertical-align: bottom; white-space: normal; }
th.text, td.text { text-align: left; white-space: normal; }
tr.fastest { background: var(--mark); font-weight: 600; }
.note { color: var(--faint); font-size: .88rem; }
figure { margin: 1rem 0; padding: .75rem; background: #fff; border: 1px solid var(--line); border-radius: 8px; }
figure svg { display: block; width: 100%; height: auto; }
summary { cursor: pointer; font-weight: 600; }
pre { overflow-x: auto; padding: .9rem; border: 1px solid var(--line); border-radius: 8px;
  font-size: .84rem; line-height: 1.4; }
"""


def report_html(comparison: Comparison, experiments: Sequence[str], title: str) -> str:
    """The page as HTML; `experiments` are the settings of the runs as TOML. Equal inputs give equal bytes."""
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="findings">{escape(findings(comparison))}</p>',
        "<h2>Algorithms</h2>",
        _algorithms(comparison),
        f'<p class="note">{escape(comparison.caption)}</p>',
        "<h2>Over time</h2>",
        *(
            _figure(figure, draw.__doc__ or name)
            for name, draw in COMPARISON_FIGURES.items()
            if (figure := draw(comparison))
        ),
        *_only_run(comparison),
        "<h2>Runs</h2>",
        _runs(comparison),
        *_settings(experiments),
    ]
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en">',
            f'<head><meta charset="utf-8"><title>{escape(title)}</title>',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<style>{STYLE}</style></head>",
            "<body>",
            *parts,
            "</body>",
            "</html>",
            "",
        ]
    )


# The findings in words ---------------------------------------------------------------------------------------------


def findings(comparison: Comparison) -> str:
    """Sentences on which algorithm reached the target first and by how much, costs, final values and caveats."""
    return " ".join([*_times(comparison), *_price(comparison), *_accuracy(comparison), *_caveats(comparison)])


def _times(comparison: Comparison) -> Iterable[str]:
    if comparison.target is None:
        yield "No algorithm improved in all of its seeds."
        return
    goal, finishers, fastest = comparison.goal, comparison.finishers, comparison.fastest
    if not finishers:
        yield f"No algorithm reached {goal} in all of its seeds."
    else:
        yield _first(comparison, goal)
        for results in finishers[len(fastest) :]:
            yield f"{results.algorithm} took {_seconds(results)}{_against_baseline(comparison, results)}."
    for results in comparison.by_algorithm:
        if not results.reached:
            longest = max(entry.rows[-1]["time"] for entry in results.entries)
            yield f"{results.algorithm} did not reach the target within {amount(longest)} s."
        elif not results.reached_by_all:
            share = f"{len(results.reached)} of {len(results.entries)} seeds"
            yield f"{results.algorithm} reached the target in only {share}."


def _first(comparison: Comparison, goal: str) -> str:
    first, *tied = comparison.fastest
    count = len(first.entries)
    clock = "real" if first.entries[0].real else "virtual"
    after = f"after {_seconds(first)} of {clock} time ({f'median of {count} seeds' if count > 1 else 'one seed'})"
    if len(comparison.by_algorithm) == 1:
        return f"{first.algorithm} reached {goal} {after}."
    if tied:
        against = "" if comparison.baseline in comparison.fastest else _against_baseline(comparison, first)
        return f"{_list(comparison.fastest)} were equally fast: they reached {goal} {after}{against}."
    if first.algorithm == BASELINE:
        return f"{first.algorithm} reached {goal} first, {after}: no other algorithm was faster."
    return f"{first.algorithm} reached {goal} first, {after}{_against_baseline(comparison, first)}."


def _against_baseline(comparison: Comparison, results: AlgorithmResults) -> str:
    known = comparison.speed_up(results)
    if known is None or results.algorithm == BASELINE:
        return ""
    if known.includes(1.0) and known.seeds > 1:
        return f", not distinguishable from {BASELINE} with these seeds ({known.text()} times as fast, paired by seed)"
    if round(known.median, 2) == 1:
        return f", as fast as {BASELINE}"
    how = "as fast" if known.median > 1 else "as long"
    ends = (known.low, known.high) if known.median > 1 else (_inverse(known.high), _inverse(known.low))
    factor = known.median if known.median > 1 else _inverse(known.median)
    spread = f" (paired by seed, {ends[0]:.3g}-{ends[1]:.3g})" if known.seeds > 1 else ""
    return f", {factor:.3g} times {how} as {BASELINE}{spread}"


def _inverse(factor: float) -> float:
    return 1 / factor if factor else inf


def _price(comparison: Comparison) -> Iterable[str]:
    """Sentences on the traffic of the fastest, where it differs from the baseline's."""
    baseline = comparison.baseline
    for results in comparison.fastest:
        if baseline is None or results is baseline or not baseline.mean("bytes_up"):
            continue
        ratio = results.mean("bytes_up") / baseline.mean("bytes_up")
        if not 0.95 < ratio < 1.05:
            yield f"{results.algorithm} uploaded {ratio:.2g} times as many bytes as {BASELINE}."


def _accuracy(comparison: Comparison) -> Iterable[str]:
    metric = comparison.metric
    best = next(
        results
        for results in comparison.by_algorithm
        if results.final_value == metric.best(other.final_value for other in comparison.by_algorithm)
    )
    if len(comparison.by_algorithm) == 1:
        yield f"Its final {metric.title} was {final_text(best)}."
    else:
        which = "highest" if metric.direction == "max" else "lowest"
        yield f"The {which} final {metric.title} was that of {best.algorithm}: {final_text(best)}."


def _caveats(comparison: Comparison) -> Iterable[str]:
    fastest, others = comparison.fastest, comparison.finishers[len(comparison.fastest) :]
    if len(comparison.by_algorithm) > 1 and all(len(results.entries) == 1 for results in comparison.by_algorithm):
        yield "With one seed each, differences may be due to chance."
    elif close := [each for each in others if not _told_apart(comparison, fastest[0], each)]:
        yield (
            f"With {seeds_text(comparison.by_algorithm)}, {fastest[0].algorithm} is not distinguishable from "
            f"{_list(close)}: their order may be due to chance."
        )
    for results in comparison.by_algorithm:
        if count := sum(entry.diverged for entry in results.entries):
            yield f"{results.algorithm} diverged in {count} of {len(results.entries)} seeds."


def _told_apart(comparison: Comparison, one: AlgorithmResults, other: AlgorithmResults) -> bool:
    known = comparison.speed_up(one, over=other)
    return known is not None and not known.includes(1.0)


def _list(algorithms: Sequence[AlgorithmResults]) -> str:
    *names, last = [results.algorithm for results in algorithms]
    return f"{', '.join(names)} and {last}" if names else last


def _seconds(results: AlgorithmResults) -> str:
    return f"{amount(median(results.reached))} s"


# Tables, figures, settings -----------------------------------------------------------------------------------------


def _algorithms(comparison: Comparison) -> str:
    lines = [comparison.cells(results) for results in comparison.by_algorithm]
    marks = [results in comparison.fastest for results in comparison.by_algorithm]
    return _table(list(lines[0]), [list(line.values()) for line in lines], marks, texts={0})


def _runs(comparison: Comparison) -> str:
    target = comparison.target
    times = [] if target is None else [comparison.time_heading]
    headings = [
        "algorithm",
        "seed",
        *times,
        f"final {comparison.metric.title}",
        "in training",
        "updates used",
        "MB up",
        "MB down",
        "stopped by",
    ]
    lines = [_run(entry, target) for entry in comparison.entries]
    return _table(headings, lines, [False] * len(lines), texts={0, len(headings) - 1})


def _run(entry: Result, target: float | None) -> list[str]:
    times = [] if target is None else [time_text(AlgorithmResults(entry.algorithm, [entry], target))]
    summary, metric = entry.summary, TargetMetric.of(entry.summary)
    return [
        entry.algorithm,
        str(entry.seed),
        *times,
        metric.text(summary[f"final_{metric.name}"], 1),
        amount(entry.in_training),
        f"{summary['updates_used']:,}",
        megabytes(summary["bytes_up"]),
        megabytes(summary["bytes_down"]),
        str(summary["stopped_by"]),
    ]


def _table(headings: list[str], lines: list[list[str]], marks: list[bool], texts: set[int]) -> str:
    """An HTML table; `texts` are the columns that are left-aligned."""

    def line(tag: str, cells: list[str], mark: bool) -> str:
        sides = [' class="text"' if number in texts else "" for number in range(len(cells))]
        row = "".join(f"<{tag}{side}>{escape(cell)}</{tag}>" for side, cell in zip(sides, cells, strict=True))
        return f'<tr class="fastest">{row}</tr>' if mark else f"<tr>{row}</tr>"

    body = "\n".join(line("td", cells, mark) for cells, mark in zip(lines, marks, strict=True))
    head = line("th", headings, False)
    return f'<div class="scroll"><table>\n<thead>{head}</thead>\n<tbody>\n{body}\n</tbody>\n</table></div>'


def _only_run(comparison: Comparison) -> list[str]:
    """The figure of the run, if the report is of a single one."""
    if len(comparison.entries) > 1:
        return []
    return [_figure(run_figure(comparison.entries[0]), "Target metric, loss and staleness over time")]


def _figure(figure: Figure, description: str) -> str:
    """The figure as inline SVG without XML prologue and dates, with fixed ids."""
    text = io.StringIO()
    removed = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with matplotlib.rc_context({"svg.hashsalt": "offbeat"}):
        figure.savefig(text, format="svg", metadata=removed)
    svg = text.getvalue()
    return f'<figure role="img" aria-label="{escape(description)}">\n{svg[svg.index("<svg") :].strip()}\n</figure>'


def _settings(experiments: Sequence[str]) -> list[str]:
    distinct = list(dict.fromkeys(experiments))
    heading = ["<h2>Settings</h2>"] if distinct else []
    return heading + [
        f"<details><summary>Experiment {number} of {len(distinct)}</summary><pre>{escape(text)}</pre></details>"
        for number, text in enumerate(distinct, start=1)
    ]
