"""Commands that run experiments on real processes: local-cluster, deploy, make-certificates, register-nodes."""

import json
import os
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from offbeat.cli.base import Changes, ExperimentFile, Out, Overwrite, Resume, console, load, present, run_name
from offbeat.cli.progress import bars, messages, note
from offbeat.core.errors import Interrupted, InvalidInput

if TYPE_CHECKING:
    from offbeat.experiment.schema import Experiment


def local_cluster(
    file: ExperimentFile,
    nodes: Annotated[int, typer.Option(min=1, help="Nodes to start; each is one device.")] = 4,
    stock_nodes: Annotated[
        bool, typer.Option("--stock-nodes", help="Flower's own SuperNodes, which start a process for each message.")
    ] = False,
    changes: Changes = None,
    out: Out = None,
    overwrite: Overwrite = False,
    resume: Resume = False,
    logs: Annotated[
        Path | None, typer.Option(help="Keep the logs of all processes here (default: only if the run fails).")
    ] = None,
) -> None:
    """Run an experiment for real on this machine: a Flower SuperLink and some nodes on loopback.

    Starts the processes on free ports, runs the experiment on the wall clock and ends all of them again, also on
    Ctrl-C; `--resume` then goes on from the last checkpoint. There are as many devices as nodes, unless
    `--set data.devices=...` says otherwise; with `--set deployment.paced=true` they take as long as `[fleet]` says.

    The nodes are those of `offbeat node`, where a message and its answer take a fraction of a second; with
    `--stock-nodes` they are Flower's, where they take some seconds, because it starts a process for each.
    """
    check_flower()
    given = any(change.partition("=")[0].strip() == "data.devices" for change in changes or ())
    experiment = load(file, [*(changes or ()), *([] if given else [f"data.devices={nodes}"])])
    _check_nodes(experiment, nodes)
    from offbeat.running.directory import RunDirectory, read_finished
    from offbeat.running.interruption import stopping_signals_raise

    other_devices = [] if given or nodes == load(file, changes).data.devices else [f"data.devices={nodes}"]
    name = run_name(file, experiment, [*(changes or ()), *other_devices])
    root = (out or Path("runs") / f"{name}-cluster").absolute()
    directory = RunDirectory(root, experiment.table(), overwrite=overwrite, resume=resume)
    if directory.finished() is None:
        try:
            with stopping_signals_raise(), TemporaryDirectory(prefix="offbeat-app-") as folder:
                _bundle(Path(folder), experiment, root, resume=resume, overwrite=overwrite)
                _run_on_cluster(Path(folder), experiment, nodes, root, logs, warm=not stock_nodes)
        except KeyboardInterrupt as stop:
            kept = f"everything up to the last checkpoint is in {root}: go on with --resume"
            sentence = f"interrupted; {kept if root.exists() else 'the run had not begun'}"
            raise Interrupted(sentence, number=getattr(stop, "number", 2)) from None
    finished = read_finished(root)
    present(experiment, finished.rows, finished.summary, root)


def deploy(
    file: ExperimentFile,
    superlink: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where the SuperLink listens.")],
    insecure: Annotated[bool, typer.Option("--insecure", help="Without TLS.")] = False,
    root_certificates: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Who vouches for the SuperLink (default: the system's).")
    ] = None,
    changes: Changes = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Directory for the results on the SuperLink's machine. Never overwritten unasked."),
    ] = None,
    overwrite: Overwrite = False,
    resume: Resume = False,
) -> None:
    """Run an experiment on a Flower SuperLink that is already there, with the SuperNodes that are connected to it.

    Makes a Flower app from the experiment and the modules that it names, hands it to the SuperLink, and shows its log
    until it ends. Ctrl-C stops the run; `--resume` then goes on from the last checkpoint.

    All machines need the same version of offbeat, with Flower: `pip install 'offbeat[flower]'`. Results go to a
    directory on the SuperLink's machine; a relative one starts where the SuperLink was started.
    """
    check_flower()
    experiment = load(file, changes)
    _check_algorithm(experiment)
    from offbeat.flower.launch.superlink import SuperLink, submit
    from offbeat.running.directory import RunDirectory, read_finished
    from offbeat.running.interruption import stopping_signals_raise

    link = SuperLink(address=superlink, insecure=insecure, root_certificates=root_certificates)
    root = out or Path("runs") / f"{run_name(file, experiment, changes)}-deployed"
    if link.local:
        root = root.absolute()
        RunDirectory(root, experiment.table(), overwrite=overwrite, resume=resume)
    with TemporaryDirectory(prefix="offbeat-app-") as folder:
        _bundle(Path(folder), experiment, root, resume=resume, overwrite=overwrite)
        run = submit(Path(folder), link)
    messages.print(f"Run {run.run_id} on the SuperLink at {link.address}; Ctrl-C stops it")
    try:
        with stopping_signals_raise():
            for line in run.follow():
                if line:
                    console.print(line, markup=False, highlight=False, soft_wrap=True)
    except KeyboardInterrupt as stop:
        run.stop()
        number = getattr(stop, "number", 2)
        raise Interrupted(f"run {run.run_id} was stopped: go on with --resume", number=number) from None
    if link.local and (root / "summary.json").is_file():
        finished = read_finished(root)
        present(experiment, finished.rows, finished.summary, root)
    else:
        console.print(f"Results in {root} on the machine of the SuperLink")


def make_certificates(
    directory: Annotated[Path, typer.Argument(help="A new directory for them.")],
    nodes: Annotated[int, typer.Option(min=0, help="Nodes that get a key.")] = 4,
    hosts: Annotated[
        list[str] | None, typer.Option("--host", help="A further name of the SuperLink's machine; may be repeated.")
    ] = None,
) -> None:
    """Make throw-away certificates and keys for a SuperLink and SuperNodes on loopback, to try out a secured set-up.

    Writes an authority (`ca.pem`), the SuperLink's certificate for localhost and 127.0.0.1 (`superlink.pem`,
    `superlink.key`), and for each node a private key (`node-0`) and the public key to register it with (`node-0.pub`).
    They are valid for 30 days and not for production.
    """
    check_flower()
    from offbeat.flower.launch.certificates import make_credentials

    make_credentials(directory, nodes, hosts or ())
    console.print(f"Certificates in {directory}: ca.pem, superlink.pem, superlink.key and keys for {nodes} nodes")


def register_nodes(
    public_keys: Annotated[list[Path], typer.Argument(help="The nodes' public keys.")],
    superlink: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where the SuperLink listens.")],
    root_certificates: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Who vouches for the SuperLink (default: the system's).")
    ] = None,
) -> None:
    """Tell a SuperLink that admits only nodes it knows which nodes these are, as `flwr supernode register` does."""
    check_flower()
    from offbeat.flower.launch.superlink import SuperLink, register

    link = SuperLink(address=superlink, root_certificates=root_certificates)
    for key in public_keys:
        if not key.is_file():
            raise InvalidInput(f"{key}: there is no such file")
    for key in public_keys:
        console.print(f"{key}: node {register(link, key)}", highlight=False)


class Tail:
    """The rows that another process adds to a file of metrics, from now on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = path.stat().st_size if path.exists() else 0

    def new(self) -> list[dict[str, float]]:
        """What has come since the last call; a line that is still being written comes later."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            if os.fstat(file.fileno()).st_size < self._position:  # begun anew, or cut back to a checkpoint
                self._position = 0
            file.seek(self._position)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._position += len(whole) + len(newline)
        return [json.loads(line) for line in whole.splitlines()]


def _run_on_cluster(
    app: Path, experiment: "Experiment", nodes: int, root: Path, logs: Path | None, *, warm: bool
) -> None:
    from offbeat.flower.launch.local_cluster import Cluster
    from offbeat.flower.launch.superlink import RunFailed, submit

    rows, stop = Tail(root / "metrics.jsonl"), experiment.stop
    with bars() as shown:
        bar = shown.add_task(experiment.algorithm.name, total=None, note=f"starting {nodes} nodes")
        with (
            Cluster(nodes, warm=warm, logs=logs) as cluster,
            (cluster.logs / "run.log").open("w", encoding="utf-8") as log,
        ):
            run = submit(app, cluster.address)
            shown.update(bar, note="waiting for the devices")
            try:
                for line in run.follow():
                    if line is not None:
                        log.write(line + "\n")
                    shown.update(bar)
                    for row in rows.new():
                        done = stop.progress(time=row["time"], versions=row["version"], updates=row["updates_used"])
                        shown.update(bar, total=1.0, completed=done, note=note(row))
            except RunFailed as error:
                raise RunFailed(f"{error} (logs: {cluster.logs})") from None


def check_flower() -> None:
    """Raise InvalidInput if Flower is not installed."""
    if find_spec("flwr") is None:
        raise InvalidInput("Flower is not installed: pip install 'offbeat[flower]'")


def _check_nodes(experiment: "Experiment", nodes: int) -> None:
    devices = experiment.data.devices
    needed = experiment.deployment.start_with or devices
    if nodes > devices:
        raise InvalidInput(f"--nodes {nodes}: data.devices = {devices}, so more than {devices} nodes have no data")
    if nodes < needed:
        raise InvalidInput(
            f"--nodes {nodes}: the run would wait for {needed} devices; set data.devices or deployment.start_with lower"
        )
    _check_algorithm(experiment)


def _check_algorithm(experiment: "Experiment") -> None:
    """What the server would refuse after Flower has started is refused here."""
    experiment.algorithm.policy.check(experiment.data.devices)


def _bundle(folder: Path, experiment: "Experiment", root: Path, *, resume: bool, overwrite: bool) -> None:
    from offbeat.flower.launch.bundle import write_bundle

    left = write_bundle(folder, experiment, out=str(root), resume=resume, overwrite=overwrite)
    if left:
        messages.print(f"Not sent to the nodes, because Flower takes only Python and plain text: {', '.join(left)}")
