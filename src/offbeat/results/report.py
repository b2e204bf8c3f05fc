"""The report: one self-contained HTML page to explore, with findings in words, tables, charts and settings.

`page/` holds its template, style and script, and uPlot, which draws the curves. The same page shows runs live.
"""

import base64
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from html import escape
from importlib.metadata import version
from importlib.resources import files
from math import inf, nan
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from offbeat.core.errors import InvalidInput
from offbeat.references import thing_name
from offbeat.results.algorithm_results import AlgorithmResults, final_text, seeds_text, time_text
from offbeat.results.comparison import BASELINE, Comparison
from offbeat.results.fleet_facts import FleetFacts, read_fleet
from offbeat.results.metric import TargetMetric, amount, megabytes
from offbeat.results.orders import parse_records, read_orders
from offbeat.results.result import Result
from offbeat.results.statistics import FEWEST
from offbeat.results.views import KINDS, Floats, Orders, fleet_picture, number, numbers, run_views

# The findings in words ---------------------------------------------------------------------------------------------

MOST_TOLD = 8
"""Most algorithms, or settings of a search, that a sentence or several in a row name."""


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
        later = finishers[len(fastest) :]
        for results in later[:MOST_TOLD]:
            yield f"{results.algorithm} took {_seconds(results)}{_against_baseline(comparison, results)}."
        if later[MOST_TOLD:]:
            yield f"{len(later) - MOST_TOLD} others took longer."
    others = [results for results in comparison.by_algorithm if not results.reached_by_all]
    if len(others) > MOST_TOLD:
        yield f"{len(others)} others did not reach the target in all of their seeds."
        return
    for results in others:
        if not results.reached:
            longest = max(entry.rows[-1]["time"] for entry in results.entries)
            yield f"{results.algorithm} did not reach the target within {amount(longest)} s."
        else:
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
        text = f"{known.median:.3g} times as fast, {known.word} {known.low:.3g}-{known.high:.3g}, paired by seed"
        return f", not distinguishable from {BASELINE} with these seeds ({text})"
    if round(known.median, 2) == 1:
        return f", as fast as {BASELINE}"
    how = "as fast" if known.median > 1 else "as long"
    ends = (known.low, known.high) if known.median > 1 else (_inverse(known.high), _inverse(known.low))
    factor = known.median if known.median > 1 else _inverse(known.median)
    spread = f" (paired by seed, {known.word} {ends[0]:.3g}-{ends[1]:.3g})" if known.seeds > 1 else ""
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
    final = "final" if all(entry.finished for entry in comparison.entries) else "latest"
    if len(comparison.by_algorithm) == 1:
        yield f"Its {final} {metric.title} was {final_text(best)}."
    else:
        which = "highest" if metric.direction == "max" else "lowest"
        yield f"The {which} {final} {metric.title} was that of {best.algorithm}: {final_text(best)}."


def _caveats(comparison: Comparison) -> Iterable[str]:
    fastest, others = comparison.fastest, comparison.finishers[len(comparison.fastest) :]
    if len(comparison.by_algorithm) > 1 and all(len(results.entries) == 1 for results in comparison.by_algorithm):
        yield "With one seed each, differences may be due to chance."
    elif others:
        seeds, leads = seeds_text(comparison.by_algorithm), [comparison.speed_up(fastest[0], over=it) for it in others]
        pairs = [(each, lead) for each, lead in zip(others, leads, strict=True) if not (lead and lead.excludes(1.0))]
        if close := [each for each, lead in pairs if lead is None or lead.includes(1.0)]:
            yield (
                f"With {seeds}, {fastest[0].algorithm} is not distinguishable from {_list(close)}: their order may be "
                "due to chance."
            )
        if ahead := [each for each, lead in pairs if each not in close]:
            yield (
                f"{fastest[0].algorithm} was ahead of {_list(ahead)} on all of {seeds}; a 95 % interval takes at least "
                f"{FEWEST}."
            )
    for results in comparison.by_algorithm:
        if count := sum(entry.diverged for entry in results.entries):
            yield f"{results.algorithm} diverged in {count} of {len(results.entries)} seeds."


def _list(algorithms: Sequence[AlgorithmResults]) -> str:
    names = [results.algorithm for results in algorithms]
    if len(names) > MOST_TOLD:
        return f"{', '.join(names[: MOST_TOLD - 1])} and {len(names) - MOST_TOLD + 1} others"
    *names, last = names
    return f"{', '.join(names)} and {last}" if names else last


def _seconds(results: AlgorithmResults) -> str:
    return f"{amount(median(results.reached))} s"


# The page ------------------------------------------------------------------------------------------------------------

ASSETS = files("offbeat.results") / "page"
X_AXES = {
    "time": "virtual time (s)",
    "version": "versions",
    "updates_used": "updates used",
    "megabytes": "traffic (MB)",
    "busy_seconds": "device seconds of training",
    "wall": "wall-clock time (s)",
}
"""The x axes of the curves by column."""
FAULTS = {
    "updates_discarded": "updates discarded",
    "updates_lost": "updates lost",
    "updates_refused": "messages refused",
    "faults_unsent": "orders not sent",
    "faults_unanswered": "orders not answered",
    "faults_node_error": "errors on nodes",
    "faults_node_gone": "nodes gone",
    "faults_not_admitted": "devices not admitted",
    "restarts": "restarts of the server",
}
"""Faults by column of a row."""
MOST_NUMBERS = 200_000
"""Most numbers of all curves in a page; rows of long runs are thinned out."""
ROOM = 2_500_000
"""Bytes of a page for the fleet strips of all runs."""
NO_ORDERS = (
    "This run has no order log (orders.bin), which versions before 0.2 did not write: the fleet strip, staleness, who "
    "is heard and where time went are not shown. Run it again to see them."
)


def report_html(comparison: Comparison, experiments: Sequence[str], title: str, problems: Sequence[str] = ()) -> str:
    """The page as HTML; `experiments` are the settings of the runs as TOML. Equal inputs give equal bytes.

    `problems` are sentences on what is missing from the page.
    """
    data = page_data(comparison) | {"title": title}
    return page_html(data, title, fragments(comparison, experiments), problems)


def page_html(
    data: Mapping[str, Any],
    title: str,
    parts: Mapping[str, str] | None = None,
    problems: Sequence[str] = (),
    *,
    connect: str = "'none'",
) -> str:
    """Fill the page's template: with data for its charts, and with fragments of HTML (see `fragments`)."""
    parts = parts or {}
    filled = {
        "connect": connect,
        "title": escape(title),
        "headline": parts.get("headline", ""),
        "problems": "".join(f"<li>{escape(each)}</li>" for each in problems),
        "table": parts.get("target-table", ""),
        "caption": parts.get("caption", ""),
        "runs": parts.get("runs-table", ""),
        "settings": parts.get("settings-list", ""),
        "version": escape(version("offbeat")),
        "data": json_text(data),
        "css": _asset("page.css"),
        "js": _asset("page.js"),
        "uplot_css": _asset("uplot.min.css"),
        "uplot_js": _asset("uplot.min.js"),
        "uplot_licence": _asset("uplot.LICENSE"),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: filled[found[1]], _asset("page.html"))


@cache
def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def json_text(value: Any) -> str:
    """A value as JSON that can stand in a script element: no text in it can end the element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def fragments(comparison: Comparison, experiments: Sequence[str]) -> dict[str, str]:
    """The parts of the page that need no script, as escaped HTML, by the id of the element that holds them."""
    first, rest = _first_sentence(findings(comparison))
    return {
        "headline": f'<p class="findings"><strong>{escape(first)}</strong> {escape(rest)}</p>',
        "target-table": _algorithms(comparison),
        "caption": _caption(comparison),
        "runs-table": _runs(comparison),
        "settings-list": _settings(experiments),
    }


def _caption(comparison: Comparison) -> str:
    """What stands under the table in a terminal, and all other notes behind it."""
    brief = comparison.brief_caption
    more = "".join(f"<li>{escape(each)}</li>" for each in comparison.sentences if each not in brief)
    return f"<p>{escape(brief)}</p><details><summary>More notes</summary><ul>{more}</ul></details>"


def _first_sentence(text: str) -> tuple[str, str]:
    first, end, rest = text.partition(". ")
    return first + end.rstrip(), rest


def page_data(comparison: Comparison, room: int = ROOM, read: "ReadViews | None" = None) -> dict[str, Any]:
    """What the charts of the page need, as plain data. `read` returns the views of a run, and may cache them."""
    runs, metric = comparison.entries, comparison.metric
    read = read or run_page
    fleets: dict[str, Any] = {}
    shown = []
    each_room = room // len(runs)
    names = _columns(runs)
    most = max(60, MOST_NUMBERS // (len(runs) * (len(names) + len(X_AXES))))
    for run in runs:
        page = read(run, each_room)
        fleet = page.pop("fleet_picture", None)
        key = json.dumps(fleet) if fleet else ""
        shown.append(
            {
                "name": f"{run.algorithm}, seed {run.seed}",
                "real": run.real,
                "columns": _series(run, names, most),
                "faults": {key: value for key in FAULTS if (value := run.rows[-1].get(key))},
                "fleet": str(list(fleets).index(key)) if key in fleets else str(len(fleets)) if key else "",
                **page,
            }
        )
        if key:
            fleets.setdefault(key, fleet)
    own = [name for name in runs[0].metrics if name in names]
    seeds = seeds_text(comparison.by_algorithm)
    methods = len(comparison.by_algorithm)
    return {
        "metric": {"name": metric.name, "direction": metric.direction},
        "shares": [name for name in names if TargetMetric(name).is_share],
        "target": comparison.target,
        "target_text": "" if comparison.target is None else metric.text(comparison.target),
        "metrics": sorted(own, key=lambda name: name != metric.name),
        "more_metrics": [name for name in names if name not in own and name not in X_AXES],
        "axes": [[key, _axis(key, comparison)] for key in X_AXES if any(key in each["columns"] for each in shown)],
        "methods": [
            {"name": each.algorithm, "runs": [runs.index(run) for run in each.entries], "groups": _groups(each)}
            for each in comparison.by_algorithm
        ],
        "first_run": runs.index((comparison.fastest or comparison.by_algorithm)[0].entries[0]),
        "spread": comparison.spread,
        "times": [_interval(each) for each in comparison.by_algorithm],
        "runs": shown,
        "fleets": {str(number): fleet for number, fleet in enumerate(fleets.values())},
        "kinds": KINDS,
        "fault_kinds": list(FAULTS.items()),
        "facts": [
            ["methods", str(methods)],
            ["seeds", seeds.removesuffix(" seeds").removesuffix(" seed")],
            *([["data", thing_name(runs[0].experiment.data.name)]] if runs[0].experiment is not None else []),
            *([["target", comparison.goal]] if comparison.target is not None else []),
            ["clock", "wall-clock" if all(run.real for run in runs) else "virtual"],
        ],
    }


def _groups(results: AlgorithmResults) -> dict[str, float | None]:
    """The final value of the target metric in each group of devices, if `evaluation.per_device` was set."""
    known = [run.summary["per_group"] for run in results.entries if run.summary.get("per_group")]
    name = results.metric.name
    return {
        group: number(fmean(each[group][name] for each in known))
        for group in (known[0] if known else {})
        if all(name in each.get(group, {}) for each in known)
    }


def _axis(key: str, comparison: Comparison) -> str:
    if key != "time":
        return X_AXES[key]
    real = {run.real for run in comparison.entries}
    return X_AXES["time"] if real == {False} else "time (s)"


def _interval(results: AlgorithmResults) -> dict[str, float | None] | None:
    """Median time to target and its interval or range, for the chart in the table; None if a seed did not reach it."""
    known = results.time
    if known is None:
        return None
    return {"median": number(known.median), "low": number(known.low), "high": number(known.high)}


def _columns(runs: Sequence[Result]) -> list[str]:
    """The columns of all rows, without those that never change from 0."""
    names = dict.fromkeys(name for run in runs for name in run.rows[-1])
    return [name for name in names if any(row.get(name) for run in runs for row in run.rows)]


def _series(run: Result, names: Sequence[str], most: int) -> dict[str, list[float | None]]:
    """The columns of a run's rows, thinned out to at most this number of rows."""
    count = len(run.rows)
    chosen = range(count) if count <= most else sorted({round(k * (count - 1) / (most - 1)) for k in range(most)})
    rows = [run.rows[k] for k in chosen]
    series = {name: numbers([row.get(name, nan) for row in rows]) for name in names if name in run.rows[-1]}
    series["megabytes"] = numbers([(row["bytes_up"] + row["bytes_down"]) / 1e6 for row in rows])
    for name in ("bytes_up", "bytes_down"):
        series.pop(name, None)
    wall = _wall(run)
    if wall:
        series["wall"] = [wall[k] if k < len(wall) else None for k in chosen]
    elif run.real:
        series["wall"] = series["time"]
    return series


def _wall(run: Result) -> list[float]:
    """Wall-clock seconds of each row; empty if they are not known."""
    try:
        text = "" if run.directory is None else (run.directory / "wall_seconds.txt").read_text(encoding="utf-8")
        return [float(line) for line in text[: text.rfind("\n") + 1].split()]
    except (OSError, ValueError):
        return []


ReadViews = Callable[[Result, int], dict[str, Any]]


def run_page(run: Result, room: int) -> dict[str, Any]:
    """The views of one run, or a sentence on why there are none, and the picture of its fleet."""
    facts = None if run.directory is None else read_fleet(run.directory)
    try:
        records = None if run.directory is None else read_orders(run.directory / "orders.bin")
    except InvalidInput as error:
        return {"missing": f"{error}.", "views": None} | _picture(facts, None)
    if records is None:
        return {"missing": NO_ORDERS, "views": None} | _picture(facts, None)
    live = {} if run.directory is None else read_live(run.directory)
    until = max(run.rows[-1]["time"], live.get("time", 0.0))
    if live:
        records = np.concatenate([records, parse_records(base64.b64decode(live.get("orders", "")))])
    weight, influence = None, list[float]()
    if run.experiment is not None:
        weight = run.experiment.algorithm.policy.weight_at
        if run.experiment.trust.screen is not None:
            influence = [device["influence"] for device in run.devices]
    views = run_views(records, facts, until, weight=weight, influence=influence, room=room)
    pace = Orders.of(records, facts, until).seconds_per_slice(facts)
    return {"views": views} | _picture(facts, pace)


def _picture(facts: FleetFacts | None, pace: Floats | None) -> dict[str, Any]:
    return {} if facts is None or not facts.samples else {"fleet_picture": fleet_picture(facts, pace)}


def read_live(directory: Path) -> dict[str, Any]:
    """The state that a run in progress published last; empty if there is none."""
    try:
        live = json.loads((directory / "live.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return live if isinstance(live, dict) else {}


# Tables and settings -------------------------------------------------------------------------------------------------


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
        head = tag == "th"
        tags = ['th scope="col"'] * len(cells) if head else ['th scope="row"', *["td"] * (len(cells) - 1)]
        row = "".join(
            f"<{each}{side}>{escape(cell)}</{each[:2]}>" for each, side, cell in zip(tags, sides, cells, strict=True)
        )
        return f'<tr class="fastest">{row}</tr>' if mark else f"<tr>{row}</tr>"

    body = "\n".join(line("td", cells, mark) for cells, mark in zip(lines, marks, strict=True))
    head = line("th", headings, False)
    return f'<div class="scroll"><table>\n<thead>{head}</thead>\n<tbody>\n{body}\n</tbody>\n</table></div>'


def _settings(experiments: Sequence[str]) -> str:
    """The settings of every experiment as TOML, each once."""
    distinct = list(dict.fromkeys(experiments))
    opening = (
        '<p class="note">Save one as experiment.toml and run it with <code>offbeat run experiment.toml</code>.</p>'
        if distinct
        else '<p class="note">The settings of these runs are not known.</p>'
    )
    return opening + "".join(
        f"<details><summary>{escape(_name_of(text, number))}</summary><pre>{escape(text)}</pre></details>"
        for number, text in enumerate(distinct, start=1)
    )


def _name_of(text: str, number: int) -> str:
    """A heading for an experiment: its algorithm and seed, or its number."""
    try:
        table = tomllib.loads(text)
        return f"{table['algorithm'].get('label') or table['algorithm']['name']}, seed {table['seed']}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"experiment {number}"
