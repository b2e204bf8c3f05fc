"""The accounts of a run: busy and wasted seconds, and what each device did, worked out by hand."""

import csv
import io
import json

import pytest

from offbeat.core.snapshot import decode, encode
from offbeat.results.rows import Span
from offbeat.running.accounts import MOST_DEVICES, Accounts, DeviceAccount, influence_summary


def span(device: int, ticket: int, sent: float, landed: float, outcome: str = "uploaded", base: int = 0) -> Span:
    """Two seconds of training, 8 bytes down and 4 up."""
    return Span(
        device=device,
        ticket=ticket,
        base=base,
        sent=sent,
        arrived=sent,
        landed=landed,
        slices=1,
        outcome=outcome,
        samples=10 * (device + 1),
        seconds=2.0,
        bytes_down=8,
        bytes_up=4,
    )


def a_run() -> Accounts:
    """Device 0 delivers twice, of which one is used two versions late; device 1 is lost; device 2 does nothing."""
    accounts = Accounts(3)
    accounts.delivered(span(0, 1, sent=0.0, landed=5.0))
    accounts.lost(span(1, 2, sent=0.0, landed=4.0, outcome="lost"))
    accounts.resolved([1], used=True, version=3)
    accounts.delivered(span(0, 3, sent=6.5, landed=9.0, base=3))
    accounts.resolved([3], used=False, version=3)
    accounts.refused(1)
    return accounts


def lines(accounts: Accounts, *open_spans: Span) -> list[dict[str, float]]:
    text = io.StringIO(accounts.csv(open_spans, 12.0))
    return [{name: float(value) for name, value in line.items()} for line in csv.DictReader(text)]


def test_busy_is_all_training_and_wasted_what_was_lost_or_given_up() -> None:
    accounts = a_run()
    assert accounts.busy_seconds == 6.0  # three orders of 2 s
    assert accounts.wasted_seconds == 4.0  # the lost one, and the one that was given up


def test_every_device_has_a_line_with_what_it_did() -> None:
    accounts = a_run()
    accounts.take_spans()
    first, second, third = lines(accounts)
    assert (first["samples"], first["orders"], first["delivered"], first["used"]) == (10, 2, 2, 1)
    assert first["mean_staleness"] == 2.0  # version 3 was made of version 2: 2 - 0
    assert first["training_seconds"] == 4.0
    assert first["way_seconds"] == 3.5  # 5 - 0 - 2 and 9 - 6.5 - 2
    assert first["idle_seconds"] == 4.5  # from 5 to 6.5 and from 9 to the end at 12
    assert (first["bytes_down"], first["bytes_up"]) == (16, 8)
    assert (second["orders"], second["delivered"], second["lost"], second["refused"]) == (1, 0, 1, 1)
    assert (second["training_seconds"], second["way_seconds"], second["bytes_up"]) == (2.0, 0.0, 0)
    assert second["idle_seconds"] == 8.0  # from its loss at 4 to the end
    assert third == dict.fromkeys(third, 0.0) | {"device": 2, "idle_seconds": 12.0}


def test_influence_is_the_share_of_used_samples_unless_other_shares_are_given() -> None:
    accounts = a_run()
    accounts.take_spans()
    assert [line["influence"] for line in lines(accounts)] == [1.0, 0.0, 0.0]
    other = csv.DictReader(io.StringIO(accounts.csv(columns={"influence": [0.5, 0.25, 0.25]})))
    assert [line["influence"] for line in other] == ["0.5", "0.25", "0.25"]


def test_fifths_go_by_known_speeds_or_else_by_measured_ones() -> None:
    table = [DeviceAccount(device=k, delivered=1, training_seconds=10.0 - k) for k in range(10)]
    shares = [0.3, 0.2, 0.1, 0.1, 0.1, 0.1, 0.1, 0.0, 0.0, 0.0]
    measured = influence_summary(table, shares)
    assert measured == {"largest": 0.3, "fastest_to_slowest_fifth": [0.0, 0.1, 0.2, 0.2, 0.5]}
    assert influence_summary(table, shares, pace=range(10))["fastest_to_slowest_fifth"] == [0.5, 0.2, 0.2, 0.1, 0.0]
    assert influence_summary(table[:3], [0.5, 0.5, 0.0]) == {"largest": 0.5}  # too few for fifths


def test_orders_in_flight_count_as_orders_and_end_the_idle_time_before_them() -> None:
    accounts = a_run()
    accounts.take_spans()
    in_flight = span(0, 4, sent=10.0, landed=12.0, outcome="in flight")
    for _ in range(2):  # saying so changes nothing
        first = lines(accounts, in_flight)[0]
        assert (first["orders"], first["delivered"], first["bytes_down"]) == (3, 2, 24)
        assert (first["training_seconds"], first["idle_seconds"]) == (4.0, 2.5)  # 1.5 and from 9 to 10


def test_spans_are_taken_once() -> None:
    accounts = a_run()
    assert [each.ticket for each in accounts.take_spans()] == [1, 2, 3]
    assert accounts.take_spans() == []


@pytest.mark.parametrize("taken", [False, True])
def test_accounts_go_on_from_a_snapshot(taken: bool) -> None:
    accounts, restored = a_run(), Accounts(3)
    accounts.delivered(span(2, 5, sent=0.0, landed=9.0))
    if taken:
        accounts.take_spans()
    tree, arrays = encode(accounts.snapshot())
    restored.restore(decode(json.loads(json.dumps(tree)), arrays, Accounts.snapshot_types))
    for each in (accounts, restored):
        each.resolved([5], used=True, version=1)
        each.take_spans()
    assert restored.csv() == accounts.csv()
    assert (restored.busy_seconds, restored.wasted_seconds) == (accounts.busy_seconds, accounts.wasted_seconds)


def test_a_large_fleet_has_no_accounts_per_device_but_the_seconds() -> None:
    accounts = Accounts(MOST_DEVICES + 1)
    accounts.delivered(span(0, 1, sent=0.0, landed=5.0))
    accounts.resolved([1], used=False, version=0)
    assert [each.ticket for each in accounts.take_spans()] == [1]
    assert not accounts.per_device
    assert (accounts.busy_seconds, accounts.wasted_seconds) == (2.0, 2.0)
