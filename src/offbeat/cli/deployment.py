"""Commands that run experiments on real processes: local-cluster, deploy."""

import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from offbeat.cli.base import (
    Changes,
    ExperimentFile,
    Out,
    Overwrite,
    Resume,
    TableFormat,
    check_format,
    console,
    load,
    output,
    present,
    run_name,
)
from offbeat.cli.live_view import Serve, live_view
from offbeat.cli.next_commands import experiment_words, next_step
from offbeat.cli.progress import bars, messages, note
from offbeat.core.errors import Interrupted, InvalidInput
from offbeat.flower.compat import FOR_NODES, check_flower

if TYPE_CHECKING:
    from offbeat.experiment.schema import Experiment


Insecure = Annotated[bool, typer.Option("--insecure", help="Connect without TLS.")]
RootCertificates = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="CA certificates that verify the SuperLink (default: system store)."),
]
MetricsPort = Annotated[
    int | None,
    typer.Option(min=1, max=65535, help="Serve metrics to Prometheus on this loopback port (tracking.prometheus)."),
]
ClientCertificate = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Your certificate and key (PEM), if a proxy before the SuperLink asks for one."),
]


def local_cluster(
    file: ExperimentFile,
    nodes: Annotated[int, typer.Option(min=1, help="Number of nodes to start; each hosts one device.")] = 4,
    stock_nodes: Annotated[
        bool, typer.Option("--stock-nodes", help="Use Flower's SuperNodes instead of `offbeat node`.")
    ] = False,
    changes: Changes = None,
    out: Out = None,
    overwrite: Overwrite = False,
    resume: Resume = False,
    metrics_port: MetricsPort = None,
    serve: Serve = False,
    logs: Annotated[
        Path | None, typer.Option(help="Directory for the logs of all processes (default: kept only if the run fails).")
    ] = None,
    form: TableFormat = None,
) -> None:
    """Run an experiment on real Flower processes on this machine, in wall-clock time.

    Starts a SuperLink, which answers only your own processes (Linux), and nodes on free loopback ports; stops them at
    the end or on Ctrl-C. `--resume` continues from the last checkpoint. There is one device per node unless
    `data.devices` is set; `--set deployment.paced=true` slows devices down to the speeds of `[fleet]`.

    Nodes are those of `offbeat node`: a round trip takes a fraction of a second. `--stock-nodes` starts Flower's
    SuperNodes: a round trip takes seconds, because they start a process per message.
    """
    check_flower(FOR_NODES)
    check_format(form)
    given = any(change.partition("=")[0].strip() == "data.devices" for change in changes or ())
    experiment = load(
        file, [*(changes or ()), *([] if given else [f"data.devices={nodes}"]), *_tracked(metrics_port)], alone=True
    )
    _check_nodes(experiment, nodes)
    from offbeat.running.directory import RunDirectory, read_finished
    from offbeat.running.interruption import stopping_signals_raise

    other_devices = [] if given or nodes == load(file, changes, alone=True).data.devices else [f"data.devices={nodes}"]
    name = run_name(file, experiment, [*(changes or ()), *other_devices])
    default = Path("runs") / f"{name}-cluster"
    root = output(out, default, resume=resume, overwrite=overwrite).absolute()
    directory = RunDirectory(root, experiment.table(), overwrite=overwrite, resume=resume)
    if directory.finished() is None:
        try:
            with stopping_signals_raise(), live_view(serve, root), TemporaryDirectory(prefix="offbeat-app-") as folder:
                _bundle(Path(folder), experiment, root, resume=resume, overwrite=overwrite)
                _run_on_cluster(Path(folder), experiment, nodes, root, logs, warm=not stock_nodes)
        except KeyboardInterrupt as stop:
            began = root.exists()
            kept = f"everything up to the last checkpoint is in {root}" if began else "the run had not begun"
            raise Interrupted(f"interrupted; {kept}", number=getattr(stop, "number", 2), resumable=began) from None
    finished = read_finished(root)
    present(experiment, finished.rows, finished.summary, root, form)
    next_step("local-cluster", form, root=root, file=experiment_words(file, changes))


def deploy(
    file: ExperimentFile,
    superlink: Annotated[str, typer.Option(metavar="HOST:PORT", help="Address of the SuperLink.")],
    insecure: Insecure = False,
    root_certificates: RootCertificates = None,
    client_certificate: ClientCertificate = None,
    changes: Changes = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Output directory on the SuperLink's machine; a relative path starts where the SuperLink runs."
        ),
    ] = None,
    overwrite: Overwrite = False,
    resume: Resume = False,
    metrics_port: MetricsPort = None,
    form: TableFormat = None,
) -> None:
    """Run an experiment on a running Flower SuperLink and the nodes connected to it.

    Packs the experiment and the modules it names into a Flower app, submits it and follows its log. Ctrl-C stops the
    run; `--resume` continues from the last checkpoint.

    All machines need the same version of offbeat with Flower: `pip install 'offbeat[flower]'`.
    """
    check_flower(FOR_NODES)
    check_format(form)
    experiment = load(file, [*(changes or ()), *_tracked(metrics_port)], alone=True)
    _check_algorithm(experiment)
    from offbeat.flower.launch.superlink import SuperLink, submit
    from offbeat.running.directory import RunDirectory, read_finished
    from offbeat.running.interruption import stopping_signals_raise

    link = SuperLink(
        address=superlink,
        insecure=insecure,
        root_certificates=root_certificates,
        client_certificate=client_certificate,
    )
    root = out or Path("runs") / f"{run_name(file, experiment, changes)}-deployed"
    if link.local:
        root = output(root, root, resume=resume, overwrite=overwrite).absolute()
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
        raise Interrupted(f"run {run.run_id} was stopped", number=number, resumable=True) from None
    if link.local and (root / "summary.json").is_file():
        finished = read_finished(root)
        present(experiment, finished.rows, finished.summary, root, form)
    else:
        console.print(f"Results in {root} on the SuperLink's machine", soft_wrap=True, highlight=False)
    next_step("deploy", form, root=root)


class Tail:
    """Reads the rows that another process appends to a metrics file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = path.stat().st_size if path.exists() else 0

    def new(self) -> list[dict[str, float]]:
        """Return the complete rows appended since the last call."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            if os.fstat(file.fileno()).st_size < self._position:  # started again, or truncated to a checkpoint
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
                        shown.update(bar, total=1.0, completed=done, note=note(row, experiment.target_metric))
            except RunFailed as error:
                raise RunFailed(f"{error} (logs: {cluster.logs})") from None


def _tracked(metrics_port: int | None) -> list[str]:
    """The override that `--metrics-port` stands for."""
    return [] if metrics_port is None else [f"tracking.prometheus={metrics_port}"]


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
    """Raise here what the server would raise only after Flower has started."""
    experiment.algorithm.policy.check(experiment.data.devices)


def _bundle(folder: Path, experiment: "Experiment", root: Path, *, resume: bool, overwrite: bool) -> None:
    from offbeat.flower.launch.bundle import write_bundle

    left = write_bundle(folder, experiment, out=str(root), resume=resume, overwrite=overwrite)
    if left:
        messages.print(
            f"Not sent to the nodes (Flower packs Python modules and plain text): {', '.join(left)}. Code that reads "
            "them needs an absolute path that exists on every node.",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
