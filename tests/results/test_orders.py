"""The order log: one record per order, with its fate, readable while the run writes it."""

from math import isnan
from pathlib import Path

import pytest

from offbeat.core.errors import InvalidInput
from offbeat.results.orders import DISCARDED, FRESH, IN_FLIGHT, LOST, ORDER, RECEIVED, USED, OrderLog, read_orders
from offbeat.results.rows import Span


def order(ticket: int, outcome: str = "uploaded", **more: object) -> Span:
    return Span(ticket % 3, ticket, 4, 1.0, 2.0, 10.0, 5, outcome, **more)  # type: ignore[arg-type]


def written(path: Path) -> OrderLog:
    log = OrderLog(path)
    log.write([(7, [order(1, trained_until=9.0, noticed=8.0, samples=40), order(2, pauses=((3.0, 4.0),))])], 11.0)
    log.write([(0, [order(3)]), (0, [order(4, "lost", ended=6.0)])], 12.0)
    return log


def test_every_order_has_a_record_with_its_fate(tmp_path: Path) -> None:
    log = written(tmp_path / "orders.bin")
    log.finish([order(5)], [order(6, "in flight")])
    log.close()
    found = read_orders(tmp_path / "orders.bin")
    assert found is not None
    assert found["kind"].tolist() == [USED, FRESH, USED, DISCARDED, LOST, RECEIVED, IN_FLIGHT]
    assert found["ticket"].tolist() == [1, 2, 2, 3, 4, 5, 6]
    first = found[0]
    assert [first[name] for name in ("device", "base", "version", "slices", "samples")] == [1, 4, 7, 5, 40]
    times = ("sent", "arrived", "trained", "ended", "landed", "resolved", "noticed")
    assert [first[name] for name in times] == [1.0, 2.0, 9.0, 10.0, 10.0, 11.0, 8.0]
    assert (found[1]["sent"], found[1]["landed"]) == (3.0, 4.0)  # the wait for a fresh model
    assert found[4]["ended"] == 6.0 and found[4]["resolved"] == 12.0
    assert isnan(found[2]["trained"]) and isnan(found[5]["resolved"])


def test_a_log_that_is_cut_in_a_record_has_the_records_before(tmp_path: Path) -> None:
    path = tmp_path / "orders.bin"
    written(path).close()
    data = path.read_bytes()
    for cut in (0, 5, 16, 16 + ORDER.itemsize - 1, 16 + ORDER.itemsize, len(data)):
        path.write_bytes(data[:cut])
        found = read_orders(path)
        assert found is not None and len(found) == max(0, cut - 16) // ORDER.itemsize


def test_a_log_goes_on_where_the_checkpoint_was(tmp_path: Path) -> None:
    path = tmp_path / "orders.bin"
    log = written(path)
    position = log.position
    log.write([(8, [order(9)])], 13.0)
    log.close()
    again = OrderLog(path, position)
    again.write([(8, [order(10)])], 13.0)
    again.close()
    found = read_orders(path)
    assert found is not None and found["ticket"].tolist() == [1, 2, 2, 3, 4, 10]


def test_another_file_is_refused_and_no_file_is_none(tmp_path: Path) -> None:
    assert read_orders(tmp_path / "orders.bin") is None
    (tmp_path / "orders.bin").write_bytes(b"something else, longer than a header")
    with pytest.raises(InvalidInput, match="is not an order log"):
        read_orders(tmp_path / "orders.bin")
