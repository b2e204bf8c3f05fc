"""`[devices.NAME]`: one device is slower, has another link, leaves, or trains less, and the others are as before."""

from pathlib import Path
from typing import Any

import pytest

import offbeat
from offbeat.core.errors import InvalidInput
from offbeat.core.orders import Order
from offbeat.simulation.run import simulation_of

NAMED = "site,x,y\n" + "".join(f"{'ABC'[row % 3]},{row % 7},{row % 2}\n" for row in range(60))


def experiment(folder: Path, devices: dict[str, Any], **tables: Any) -> offbeat.Experiment:
    (folder / "sites.csv").write_text(NAMED)
    data = {"name": "csv", "path": str(folder / "sites.csv"), "target": "y", "device": "site", "devices": 3}
    plain: dict[str, Any] = {
        "data": data,
        "model": "logistic",
        "local": {"epochs": 4},
        "fleet": {"name": "ratio", "ratio": 1.0},
        "algorithm": {"name": "fedavg", "cohort": 3},
        "stop": {"versions": 2},
        "execution": {"executor": "sequential"},
        "devices": devices,
    }
    return offbeat.Experiment(**(plain | tables))


def test_speed_link_availability_and_work_of_single_devices(tmp_path: Path) -> None:
    own = {"B": {"slowdown": 3.0, "uplink_mbps": 1.0, "on_seconds": 5.0, "off_seconds": 2.0}}
    given = experiment(tmp_path, own | {"2": {"epochs": 1, "batch_size": 7, "latency": 0.5}})
    with simulation_of(given) as simulation:
        fleet = simulation.fleet
        assert fleet.speeds.slice_seconds(0, 1, Order(slices=2)) == (1.0, 1.0)
        assert list(fleet.speeds.slice_seconds(1, 1, Order(slices=2))) == [3.0, 3.0]
        speeds = fleet.speeds.layer_speeds()
        assert speeds is not None and speeds[1] == pytest.approx(speeds[0] / 3)
        # 10^6 bytes at 1 Mbit/s take 8 s, at the usual 10 Mbit/s 0.8 s; latency 0.05 s, of device 2 0.5 s.
        assert [fleet.links.up_seconds(device, 10**6) for device in range(3)] == pytest.approx([0.85, 8.05, 1.3])
        assert [fleet.availability.available(1, at) for at in (0.0, 4.9, 5.1, 6.9, 7.1)] == [
            True,
            True,
            False,
            False,
            True,
        ]
        assert fleet.availability.next_change(1, 0.0) == 5.0 and fleet.availability.available(0, 5.5)
        iterator = iter(simulation)
        next(iterator)
        orders = {each.device: each.order for each in simulation.session.in_flight.values()}
        assert [(orders[device].slices, orders[device].batch_size) for device in range(3)] == [(4, 32), (4, 32), (1, 7)]
    result = offbeat.run(given, tmp_path / "out")
    assert result.rows[-1]["version"] == 2
    again = result.experiment
    assert again is not None and offbeat.Experiment.parse(again.table()).table() == given.table()


@pytest.mark.parametrize(
    ("devices", "words"),
    [
        ({"D": {"slowdown": 2.0}}, "devices.D: there is no device 'D': give one of 0 to 2 or A, C ..."),
        ({"A": {"slowdown": 2.0}, "0": {"epochs": 1}}, "device 0 has another table too"),
        ({"A": {"on_seconds": 2.0}}, "give on_seconds and off_seconds, or neither"),
        ({"A": {"slowness": 2.0}}, "unknown key 'devices.A.slowness'"),
        ({"A": {"slowdown": 0.0}}, "devices.A.slowdown = 0.0: must be greater than 0"),
    ],
)
def test_a_wrong_device_is_one_sentence(tmp_path: Path, devices: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        offbeat.run(experiment(tmp_path, devices))
    assert words in str(refused.value)


def test_no_overrides_leave_the_tables_as_they_were(tmp_path: Path) -> None:
    assert "devices" not in experiment(tmp_path, {}).table()
