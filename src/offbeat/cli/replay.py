"""The command that replays a real run in the simulator."""

from pathlib import Path
from typing import Annotated

import typer

from offbeat.cli.base import console
from offbeat.cli.progress import bars


def replay(directory: Annotated[Path, typer.Argument(help="The directory of a real run.")]) -> None:
    """Replay a real run in the simulator, from its record, and compare every order and every version with it.

    A run that was replayed to the same bits was computed as the record says. The data must be here too, so a run on
    devices' own data cannot be replayed; and the last bits of floating-point numbers need the same libraries and the
    same kind of processor. Ends with exit code 1 and the first difference if there is one.
    """
    from offbeat.simulation.run import replay as replay_run

    with bars() as shown:
        bar = shown.add_task("replay", total=1.0, note="")
        said = replay_run(directory, lambda fraction: shown.update(bar, completed=fraction)).summary
    console.print(
        f"{said['replayed_orders']} orders and {said['replayed_versions']} versions are the same as in the record, "
        "bit by bit."
    )
    if said["replayed_model"]:
        console.print("The final parameters are those of model.safetensors.")
    else:
        console.print("There are no final parameters to compare with: the run left no model.safetensors.")
