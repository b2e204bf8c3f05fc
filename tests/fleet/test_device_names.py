"""Devices that have names: data, fleet, network and availability are matched by them, or refused."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

import offbeat
from offbeat.core.errors import InvalidInput
from offbeat.core.orders import Order
from offbeat.experiment.schema import Experiment
from offbeat.results.plots import devices_figure
from offbeat.running.assembly import ExperimentParts

SITES = [f"H{number:02}" for number in range(1, 11)]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Ten hospitals with four patients each; hospital k takes k seconds for an epoch, and its uplink has k Mbit/s."""
    rows = [f"{site},{k % 3},{k % 2}" for site in SITES for k in range(4)]
    (tmp_path / "patients.csv").write_text("\n".join(["hospital,age,ill", *rows]) + "\n")
    write(tmp_path, reversed(SITES))
    return tmp_path


def write(folder: Path, order: Any) -> None:
    sites = list(order)
    seconds = [f"{site},{int(site[1:])}" for site in sites]
    (folder / "fleet.csv").write_text("\n".join(["device,epoch_seconds", *seconds]) + "\n")
    (folder / "links.csv").write_text("\n".join(["device,time,uplink_mbps", *(f"{s},0,{int(s[1:])}" for s in sites)]))
    (folder / "times.csv").write_text("\n".join(["device,time,available", *(f"{s},0,1" for s in sites)]) + "\n")


def experiment(folder: Path, **others: Any) -> Experiment:
    data = {"name": "csv", "path": str(folder / "patients.csv"), "target": "ill", "device": "hospital", "devices": 10}
    return Experiment(
        stop={"time": 60.0},
        data=data,
        model="logistic",
        fleet={"name": "trace", "path": str(folder / "fleet.csv")},
        network={"trace": {"path": str(folder / "links.csv")}, "latency": 0.0},
        **others,
    )


def test_a_hospital_has_its_own_speed_and_link_whatever_the_order_of_the_rows(files: Path) -> None:
    for order in (SITES, reversed(SITES)):
        write(files, order)
        fleet = ExperimentParts.of(experiment(files)).fleet()
        assert list(fleet.names or ()) == SITES
        assert [fleet.speeds.slice_seconds(k, 0, Order())[0] for k in range(10)] == [float(k) for k in range(1, 11)]
        assert [8 / fleet.links.up_seconds(k, 1_000_000) for k in range(10)] == pytest.approx(list(range(1, 11)))


def test_names_that_do_not_fit_are_refused_with_the_first_that_is_missing(files: Path) -> None:
    write(files, [*SITES[:3], "H99", *SITES[4:]])
    with pytest.raises(
        InvalidInput, match=r"column 'device' of .*fleet.csv has no 'H04', which is a device of \[data\]"
    ):
        ExperimentParts.of(experiment(files)).fleet()
    write(files, SITES)
    (files / "links.csv").write_text("device,time,uplink_mbps\nH01,0,1\n")
    with pytest.raises(InvalidInput, match=r"network.trace.path: column 'device' .* has no 'H02'"):
        ExperimentParts.of(experiment(files)).fleet()


def test_names_are_in_the_table_of_devices_in_its_figure_and_in_the_timeline(files: Path) -> None:
    result = offbeat.run(experiment(files, algorithm={"name": "fedavg", "cohort": 10}), files / "run")
    with (files / "run" / "devices.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == SITES
    assert float(rows[0]["training_seconds"]) < float(rows[9]["training_seconds"])
    figure = devices_figure(result)
    assert figure is not None and [label.get_text() for label in figure.axes[0].get_yticklabels()] == SITES
    lines = json.loads((files / "run" / "timeline.json").read_text())
    assert any(line["args"].get("name", "").startswith("H01 (device 0)") for line in lines if line["ph"] == "M")
