"""The commands that usually come next, for every command: the one place that names them."""

import shlex
from collections.abc import Iterable
from pathlib import Path

NEXT: dict[str, tuple[str, ...]] = {
    "demo --quick": ("offbeat demo --full", "offbeat init (your own data and devices)"),
    "demo": ("offbeat init (your own data and devices)", "offbeat list experiments"),
    "init": ("offbeat run {file}", "offbeat compare {file} --seeds 1"),
    "list": ("offbeat describe {name}",),
    "list experiments": ("offbeat run {name}",),
    "describe": ("offbeat list algorithms", "offbeat run demo --set TABLE.KEY=VALUE"),
    "describe algorithms": ("offbeat run demo --set algorithm.name={name}", "offbeat tune demo --algorithms {name}"),
    "describe experiments": ("offbeat run {name}", "offbeat compare {name}"),
    "run": ("offbeat compare {file} --algorithms {names}", "offbeat report {root}"),
    "compare": ("offbeat tune {file} --algorithms {names}", "offbeat recommend {file}"),
    "sweep": ("offbeat tune {file}", "offbeat report {root}"),
    "recommend": ("offbeat local-cluster {file} --nodes 4", "offbeat deploy {file} --superlink HOST:PORT"),
    "tune": ("offbeat run {winner}", "offbeat recommend {file}"),
    "verify": ("offbeat compare smoke --seeds 1", "offbeat list algorithms"),
    "plan deadlines": ("offbeat run {file}",),
    "plan delays": ("offbeat compare {file} --algorithms audg,psurdg",),
    "plan slots": ("add the line to [algorithm] and offbeat run {file}",),
    "runs": ("offbeat report {root}", "offbeat serve"),
    "watch": ("offbeat report {root}",),
    "report": ("open {page} in a browser", "offbeat serve (the same page, live)"),
    "partition": ("offbeat run {file}",),
    "replay": ("offbeat report {root}",),
    "simulate": ("offbeat simulate {app} --strategies fedavg,fedbuff --seeds 3", "offbeat report {root}"),
    "simulate --strategies": ("open {root}/report.html in a browser", "use the best in your app: offbeat.flower"),
    "local-cluster": ("offbeat replay {root}", "offbeat deploy {file} --superlink HOST:PORT"),
    "deploy": ("offbeat report {root}", "offbeat replay {root}"),
    "node certificates": ("offbeat node register {root}/node-*.pub --superlink HOST:PORT",),
    "node register": ("offbeat node --superlink HOST:PORT --auth-supernode-private-key FILE",),
}
"""By command, or by command and what it was given; `serve` and `node` run until they are stopped."""


def next_step(command: str, form: str | None = None, **facts: object) -> None:
    """Name the commands that usually come next on standard error; nothing if the table is for a paper."""
    from offbeat.cli.progress import messages

    if form is None:
        told = " or ".join(NEXT[command]).format_map(facts)
        messages.print(f"Next: {told}", soft_wrap=True, highlight=False, markup=False)


def experiment_words(file: Path, changes: Iterable[str] | None) -> str:
    """An experiment file with its overrides, as words of a command.

    >>> experiment_words(Path("demo"), ["fleet.ratio=5"])
    'demo --set fleet.ratio=5'
    """
    return shlex.join([str(file), *(word for change in changes or () for word in ("--set", change))])
