"""`offbeat init`: writes an experiment on the user's own table, or on a data set of ours, that runs at once."""

import csv
import io
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from offbeat.cli.base import console
from offbeat.cli.next_commands import next_step
from offbeat.core.errors import InvalidInput, unknown

FILES = ("experiment.toml", "fleet.csv", "my_module.py")
TABLES = (".csv", ".gz", ".parquet")

MODULE = '''"""The model and the policy of experiment.toml ("my_module:network", "my_module:MyPolicy"): edit them."""

import math
from dataclasses import dataclass

from offbeat.policy import Commit, Dispatch, Policy, Uploaded
from torch import nn


def network(input_shape, outputs):
    """The model: any torch module that maps inputs of this shape to this many outputs."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(input_shape), 32),
        nn.ReLU(),
        nn.Linear(32, outputs),
    )


@dataclass
class Memory:
    """What the policy remembers between events; it is part of every checkpoint."""

    uploads: int = 0


class MyPolicy(Policy):
    """Mix each upload into the model at once, with less weight the staler it is."""

    State = Memory
    concurrency: int = 5
    """Devices kept in training."""
    weight: float = 0.5
    """Weight of an update that is not stale."""

    def react(self, event, state, view):
        # An event in, actions out. There is no clock and no network here: the same class runs on real devices.
        if isinstance(event, Uploaded):
            state.uploads += 1
            update = event.update
            staleness = view.version - update.base  # versions since this device got its model
            share = self.weight / (1 + staleness)
            mixed = (1 - share) * view.parameters + share * update.parameters
            yield Commit(parameters=mixed.astype("float32"), used=(update.ticket,))
        for device in view.pick(self.concurrency - len(view.in_flight)):
            yield Dispatch(device=device, order=view.order())
'''


def init(
    directory: Annotated[Path, typer.Argument(help="Directory to write to (default: the current one).")] = Path(),
    data: Annotated[
        str | None,
        typer.Option(help="A CSV or parquet file, or an embedded data set: digits, mnist5k, synthetic."),
    ] = None,
    target: Annotated[str | None, typer.Option(help="The column to predict (default: the last).")] = None,
    device: Annotated[str | None, typer.Option(help="The column that names each row's device (default: none).")] = None,
    devices: Annotated[
        int | None, typer.Option(min=2, help="Number of devices, if no column names them (default: 20).")
    ] = None,
    slow: Annotated[
        str | None,
        typer.Option(help="Slow devices: how many, or their names, e.g. `H01,H07` (default: a fifth)."),
    ] = None,
    slowness: Annotated[
        float | None, typer.Option(min=1.0, help="How many times longer a slow device trains (default: 10).")
    ] = None,
    online: Annotated[
        float | None,
        typer.Option(min=0.0, help="Seconds a device stays online before it leaves (default 0: it never leaves)."),
    ] = None,
    offline: Annotated[float | None, typer.Option(min=0.001, help="Seconds until it is back (default: 60).")] = None,
) -> None:
    """Write an experiment on your own data that runs at once: experiment.toml, fleet.csv and my_module.py.

    Asks for what is not given if the terminal is interactive, else uses the defaults. Refuses to overwrite.

    Example: `offbeat init --data patients.csv --target outcome --device hospital --slow 3 --slowness 8`
    """
    for name in FILES:
        if (directory / name).exists():
            raise InvalidInput(
                f"{directory / name} exists: `offbeat init` overwrites nothing, choose another directory"
            )
    asked = _Questions(sys.stdin.isatty() and sys.stdout.isatty())
    source = asked.text(data, "CSV or parquet file, or digits, mnist5k, synthetic", "digits")
    if source.endswith(TABLES):
        plan = _of_table(asked, source, target, device, devices, directory)
    else:
        plan = _of_dataset(asked, source, target, device, devices)
    count = asked.text(slow, "Slow devices (how many, or names)", str(max(1, len(plan.names) // 5)))
    chosen = _slow(count, plan.names)
    factor = asked.number(slowness, "Times longer that a slow device trains", 10.0) if chosen else 1.0
    stays = asked.number(online, "Seconds a device stays online before it leaves (0: it never leaves)", 0.0)
    back = asked.number(offline, "Seconds until it is back", 60.0) if stays else 0.0
    _write(directory, plan, chosen, factor, stays, back)


@dataclass(frozen=True)
class _Plan:
    """What the answers say about data and devices."""

    data: dict[str, Any]
    """The table `[data]`."""
    names: list[str]
    classes: int
    """0: the target is a number."""
    divided: bool


@dataclass(frozen=True)
class _Questions:
    """Asks for options that were not given, if there is somebody to ask."""

    interactive: bool

    def text(self, given: str | None, question: str, default: str) -> str:
        if given is not None or not self.interactive:
            return default if given is None else given
        return str(typer.prompt(question, default=default)).strip()

    def number(self, given: float | None, question: str, default: float) -> float:
        if given is not None or not self.interactive:
            return default if given is None else given
        return float(typer.prompt(question, default=default, type=float))


def _of_table(
    asked: _Questions, source: str, target: str | None, device: str | None, devices: int | None, directory: Path
) -> _Plan:
    from offbeat.data.csv_table import MOST_CATEGORIES, CsvTable

    file = Path(source).expanduser()
    table = CsvTable(path=str(file), target="?").read()
    if asked.interactive and target is None:
        console.print("Columns:", ", ".join(table), highlight=False, markup=False, soft_wrap=True)
    target = asked.text(target, "Column to predict", list(table)[-1])
    device = asked.text(device, "Column that names the device (empty: none)", "") or None
    for key, name in (("--target", target), ("--device", device)):
        if name is not None and name not in table:
            raise unknown(f"column in {key},", name, table)
    if device is not None:
        if devices is not None:
            raise InvalidInput(f"--devices = {devices}: the column {device!r} names the devices, leave one of them out")
        number = len(set(table[device].texts().tolist()))
    else:
        number = int(asked.number(devices, "Devices", 20))
    drop = [
        name
        for name, column in table.items()
        if name not in (target, device)
        and column.numbers is None
        and len(set(column.texts().tolist())) > MOST_CATEGORIES
    ]
    gaps = any(column.absent.any() for name, column in table.items() if name not in (target, device, *drop))
    given: dict[str, Any] = {"path": str(file.resolve()), "target": target, "devices": number}
    given |= {"device": device} if device else {}
    given |= {"drop": drop} if drop else {}
    given |= {"missing": "fill"} if gaps else {}
    settings = CsvTable(**given)
    loaded = settings.load(0)  # every error in the file is reported before anything is written
    numeric = loaded.train_y.dtype.kind == "f"
    given["path"] = Path(os.path.relpath(file.resolve(), directory.resolve())).as_posix()
    given |= {"standardise_target": True} if numeric else {}
    names = list(loaded.device_names) or [str(number) for number in range(number)]
    for name in drop:
        console.print(f"Column {name!r} is left out: it has more than {MOST_CATEGORIES} different texts.", markup=False)
    return _Plan({"name": "csv"} | given, names, 0 if numeric else loaded.classes, device is not None)


def _of_dataset(asked: _Questions, source: str, target: str | None, device: str | None, devices: int | None) -> _Plan:
    from offbeat.data import DATASETS

    if source not in DATASETS:
        raise unknown("file or data set", source, DATASETS)
    needed = [name for name, field in DATASETS[source].model_fields.items() if field.is_required()]
    if needed:
        raise InvalidInput(
            f"data {source!r} needs data.{needed[0]}: begin with `offbeat init --data digits` and set data.name and "
            f"data.{needed[0]} in experiment.toml"
        )
    for flag, value in (("--target", target), ("--device", device)):
        if value is not None:
            raise InvalidInput(f"{flag} = {value}: only a CSV or parquet file has columns")
    number = int(asked.number(devices, "Devices", 20))
    own = {"devices": number} if "devices" in DATASETS[source].model_fields else {}
    loaded = DATASETS[source].model_validate(own).load(0)
    return _Plan({"name": source, "devices": number}, [str(each) for each in range(number)], loaded.classes, bool(own))


def _slow(given: str, names: list[str]) -> set[str]:
    """The slow devices: the last ones if a number is given."""
    if given.isdigit():
        if int(given) > len(names):
            raise InvalidInput(f"--slow = {given}: there are only {len(names)} devices")
        return set(names[len(names) - int(given) :])
    chosen = {name.strip() for name in given.split(",")}
    for name in chosen:
        if name not in names:
            raise unknown("device in --slow,", name, names)
    return chosen


def _write(directory: Path, plan: _Plan, slow: set[str], slowness: float, online: float, offline: float) -> None:
    from offbeat.results.files import replace_file

    directory.mkdir(parents=True, exist_ok=True)
    fleet = io.StringIO()
    writer = csv.writer(fleet, lineterminator="\n")
    writer.writerow(["device", "epoch_seconds", "uplink_mbps", "downlink_mbps"])
    for name in plan.names:
        writer.writerow([name, f"{slowness if name in slow else 1:g}", 10, 100])
    texts = {
        "experiment.toml": _experiment(plan, slowness, online, offline),
        "fleet.csv": fleet.getvalue(),
        "my_module.py": MODULE,
    }
    for name, text in texts.items():
        replace_file(directory / name, text.encode())
    file = directory / "experiment.toml"
    console.print(f"Wrote {', '.join(str(directory / name) for name in texts)}.", highlight=False, soft_wrap=True)
    console.print("Edit fleet.csv to describe your devices.", highlight=False)
    next_step("init", file=file)


def _experiment(plan: _Plan, slowness: float, online: float, offline: float) -> str:
    import tomli_w

    data = tomli_w.dumps({"data": plan.data}).strip()
    epochs, devices = 2, len(plan.names)
    in_training = max(1, min(devices, max(2, devices // 4)))
    time = round(epochs * (20 + 10 * slowness))
    partition = "" if plan.divided else SKEWED if plan.classes else EVEN
    availability = (
        f"""
[availability]
name = "on-off"                # every device leaves and returns
on_seconds = {online:.1f}
off_seconds = {offline:.1f}
"""
        if online
        else ""
    )
    task = REGRESSION if not plan.classes else BINARY if plan.classes == 2 else ""
    return TEMPLATE.format(
        time=f"{time:.1f}",
        data=data,
        partition=partition,
        task=task,
        epochs=epochs,
        availability=availability,
        in_training=in_training,
        buffer=max(1, in_training // 2),
    )


EVEN = """
[partition]
name = "iid"                   # equal parts, at random
"""
SKEWED = """
[partition]
name = "dirichlet"             # uneven labels and sizes; iid: equal parts
alpha = 0.5
"""
REGRESSION = """
[task]
name = "regression"
measures = ["r2", "rmse", "mae", "loss"]   # rmse and mae in standard deviations of the target
"""
BINARY = """
[task]
name = "classification"
measures = ["accuracy", "auc", "loss"]
"""
TEMPLATE = """# An experiment on uneven devices: offbeat run, offbeat compare and offbeat recommend take this file.
seed = 0

[stop]
time = {time}                   # virtual seconds

{data}
{partition}
[model]
name = "my_module:network"     # or one of `offbeat list models`
{task}
[local]
optimiser = "adam"
learning_rate = 0.01
epochs = {epochs}                     # per order
batch_size = 32

[fleet]
name = "trace"                 # one row per device: seconds per epoch, and its link
path = "fleet.csv"
{availability}
[algorithm]
name = "fedbuff"               # `offbeat list algorithms`, or "my_module:MyPolicy"
concurrency = {in_training}
buffer = {buffer}

[compare]
in_training = {in_training}                # devices in training at a time, for every algorithm
[compare.fedavg]
[compare.fedbuff]
[compare.mine.algorithm]
name = "my_module:MyPolicy"
"""
