"""What the devices of a run did, as numbers for charts: the fleet strip, staleness, who is heard, where time went.

Everything comes from the order log (`results.orders`) and `fleet.json`, and is plain data for JSON. Arrays are computed
at once for all orders, so that a million orders take seconds.
"""

import base64
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from offbeat.results.fleet_facts import FleetFacts
from offbeat.results.orders import DISCARDED, FRESH, IN_FLIGHT, LOST, RECEIVED, USED, Records

KINDS = (
    "download",
    "training",
    "upload",
    "waiting for a fresh model",
    "training after a stop notice",
    "lost",
    "training of a discarded update",
)
"""What a device does with an order; the numbers in a strip are places in this list. Otherwise it has no order."""
DOWNLOAD, TRAINING, UPLOAD, FRESH_WAIT, STOPPING, GONE, UNUSED = range(len(KINDS))
MOST_PARTS = 100_000
"""Most parts of orders that a strip draws one by one."""
BYTES_PER_PART = 8
"""What a part takes in a page, compressed."""
CELLS = (100, 300)
"""Most rows and columns of a strip of merged cells."""
MOST_COMMITS = 4_000
"""Most versions that a strip marks."""
MOST_POINTS = 300
"""Most points of a series over time."""
MOST_BARS = 100
"""Most bars of the staleness histogram; the last holds all that is staler."""
QUINTILES = ("fastest fifth", "second fifth", "third fifth", "fourth fifth", "slowest fifth")
SHOWN_LABELS, SHOWN_DEVICES = 40, 200
"""Most labels and devices in the picture of the partition."""

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Orders:
    """The orders of a run with what follows from their records, as arrays over orders."""

    records: Records
    """Records of orders, without those of waits for a fresh model."""
    waits: Records
    devices: int
    until: float
    """The time up to which the run is known."""
    begin: Floats
    """When training began: after the download, or when the order ended before."""
    trained: Floats
    """When training ended."""
    waited: Floats
    """Seconds of waiting for fresh models."""

    @classmethod
    def of(cls, records: Records, facts: FleetFacts | None, until: float) -> "Orders":
        """Split and complete the records of a run."""
        waits, orders = records[records["kind"] == FRESH], records[records["kind"] != FRESH]
        known = len(facts.samples) if facts is not None else 0
        devices = max(known, int(orders["device"].max()) + 1 if len(orders) else 0)
        until = max(until, float(orders["landed"].max()) if len(orders) else 0.0)
        begin = np.minimum(orders["arrived"], orders["ended"])
        trained = np.where(np.isnan(orders["trained"]), orders["ended"], orders["trained"])
        trained = np.clip(trained, begin, orders["ended"])
        waited = np.zeros(len(orders))
        if len(waits):
            place = np.argsort(orders["ticket"], kind="stable")
            at = np.searchsorted(orders["ticket"], waits["ticket"], sorter=place)
            found = at < len(orders)
            at = place[np.minimum(at, max(0, len(orders) - 1))]
            found &= orders["ticket"][at] == waits["ticket"]
            np.add.at(waited, at[found], (waits["landed"] - waits["sent"])[found])
            np.maximum.at(trained, at[found], waits["landed"][found])
        return cls(
            records=orders, waits=waits, devices=devices, until=until, begin=begin, trained=trained, waited=waited
        )

    @property
    def uploaded(self) -> npt.NDArray[np.bool_]:
        """Which orders ended with an upload."""
        kind = self.records["kind"]
        return np.isin(kind, (USED, DISCARDED, RECEIVED))

    @property
    def training(self) -> Floats:
        """Seconds of training of each order."""
        return np.asarray(np.maximum(self.trained - self.begin - self.waited, 0.0))

    def seconds_per_slice(self, facts: FleetFacts | None) -> Floats:
        """The measured pace of each device; if it has uploaded nothing, an estimate from its speed, or nan."""
        device, done = self.records["device"], self.uploaded
        seconds = np.bincount(device[done], self.training[done], self.devices)
        slices = np.bincount(device[done], self.records["slices"][done], self.devices)
        pace = np.divide(seconds, slices, out=np.full(self.devices, np.nan), where=slices > 0)
        if facts is not None and len(facts.samples_per_second) == self.devices == len(facts.samples):
            speeds = np.array(facts.samples_per_second)
            work = np.array(facts.samples) / np.where(speeds > 0, speeds, np.nan)
            known = np.isfinite(pace) & np.isfinite(work) & (work > 0)
            factor = float(np.median(pace[known] / work[known])) if known.any() else 1.0
            pace = np.where(np.isfinite(pace), pace, work * factor)
        return np.asarray(pace)


def ranks(pace: Floats) -> Ints:
    """The place of each device from fast to slow; devices of unknown pace are last."""
    order = np.argsort(np.where(np.isfinite(pace), pace, np.inf), kind="stable")
    places = np.empty(len(pace), dtype=np.int64)
    places[order] = np.arange(len(pace))
    return places


def run_views(
    records: Records,
    facts: FleetFacts | None,
    until: float,
    *,
    weight: Callable[[int], float | None] | None = None,
    influence: Sequence[float] = (),
    room: int = 1_000_000,
) -> dict[str, Any]:
    """All views of one run.

    `weight` is the policy's weight by staleness; `influence` each device's share after the bounds of `[trust]`, if
    there are any; `room` the bytes that the strip may take.
    """
    orders = Orders.of(records, facts, until)
    pace = orders.seconds_per_slice(facts)
    place = ranks(pace)
    return {
        "devices": orders.devices,
        "strip": strip(orders, pace, place, room),
        "staleness": staleness(orders, weight),
        "heard": heard(orders, place, facts, influence),
        "time": where_time_went(orders),
        "buffer": buffer_fill(orders),
        "waited_for": waited_for(orders, place),
    }


# The fleet strip -----------------------------------------------------------------------------------------------------


def parts(orders: Orders) -> tuple[Ints, Ints, Floats, Floats]:
    """Device, kind, start and end of all parts of all orders."""
    each = orders.records
    kind, begin, trained = each["kind"], orders.begin, orders.trained
    gone, noticed = kind == LOST, each["noticed"]
    stop = np.where(np.isnan(noticed), trained, np.clip(noticed, begin, trained))
    work = np.where(kind == DISCARDED, UNUSED, TRAINING)
    pieces = [
        (each["device"], np.where(gone, GONE, DOWNLOAD), each["sent"], np.where(gone, each["landed"], begin)),
        (each["device"], work, begin, np.where(gone, begin, stop)),
        (each["device"], np.full(len(each), STOPPING), stop, np.where(gone, stop, trained)),
        (each["device"], np.full(len(each), UPLOAD), trained, np.where(gone, trained, each["ended"])),
        (each["device"], np.full(len(each), GONE), each["ended"], np.where(gone, each["ended"], each["landed"])),
        (
            orders.waits["device"],
            np.full(len(orders.waits), FRESH_WAIT),
            orders.waits["sent"],
            orders.waits["landed"],
        ),
    ]
    device, what, start, end = (np.concatenate(columns) for columns in zip(*pieces, strict=True))
    shown = end > start
    return device[shown].astype(np.int64), what[shown].astype(np.int64), start[shown], end[shown]


def strip(orders: Orders, pace: Floats, place: Ints, room: int) -> dict[str, Any]:
    """The rows of the fleet strip: every part of every order, or cells that merge devices and times."""
    device, what, start, end = parts(orders)
    row = place[device]
    used = orders.records[orders.records["kind"] == USED]
    _, first = np.unique(used["version"], return_index=True)
    commits = np.sort(used["resolved"][first])
    by_place = np.argsort(place)
    shown = {
        "until": number(orders.until),
        "rows": orders.devices,
        "orders": len(orders.records),
        "versions": len(commits),
        "commits": numbers(commits[:: max(1, -(-len(commits) // MOST_COMMITS))]),
        "device": by_place.tolist() if orders.devices <= 2_000 else [],
        "pace": numbers(pace[by_place]) if orders.devices <= 2_000 else [],
    }
    if len(row) <= MOST_PARTS and len(row) * BYTES_PER_PART <= room and orders.devices <= 2_000:
        # Waits for a fresh model lie within training and are drawn over it: they come last in their row.
        order = np.lexsort((start, what == FRESH_WAIT, row))
        columns = (row.astype("<u2"), what.astype("u1"), start.astype("<f4"), (end - start).astype("<f4"))
        data = b"".join(column[order].tobytes() for column in columns)
        return shown | {"parts": len(row), "data": packed(data)}
    return shown | cells(row, what, start, end, orders)


def cells(row: Ints, what: Ints, start: Floats, end: Floats, orders: Orders) -> dict[str, Any]:
    """Merged cells, a byte each: the most frequent activity (high four bits) and its share of time in fifteenths."""
    group = -(-orders.devices // CELLS[0])
    height, width = -(-orders.devices // group), CELLS[1]
    seconds = orders.until / width or 1.0
    shares = np.zeros((len(KINDS), height * (width + 2)))
    line = row // group * (width + 2)
    for sign, time in ((1.0, start), (-1.0, end)):  # the sum over earlier columns gives the covered share of each cell
        column = np.minimum((time / seconds).astype(np.int64), width)
        over = time / seconds - column
        for kind in range(len(KINDS)):
            mine = what == kind
            if mine.any():
                for at, amount in ((column, 1.0 - over), (column + 1, over)):
                    shares[kind] += sign * np.bincount((line + at)[mine], amount[mine], shares.shape[1])
    covered = shares.reshape(len(KINDS), height, width + 2).cumsum(axis=2)[:, :, :width]
    covered[TRAINING] -= covered[FRESH_WAIT]  # waits lie within training
    sizes = np.minimum(group, orders.devices - group * np.arange(height))[:, None]
    most = covered.argmax(axis=0)
    level = np.clip(np.ceil(15 * covered.max(axis=0) / sizes - 1e-9), 0, 15).astype(np.int64)
    return {"cells": [height, width], "group": group, "data": packed((most * 16 + level).astype("u1").tobytes())}


def packed(data: bytes) -> str:
    """Bytes as compressed base64, which a browser unpacks."""
    return base64.b64encode(zlib.compress(data, 6)).decode()


# Staleness, who is heard ---------------------------------------------------------------------------------------------


def staleness(orders: Orders, weight: Callable[[int], float | None] | None) -> dict[str, Any]:
    """How many updates were used at each staleness, what the policy's weight is there, and what was dropped."""
    kind = orders.records["kind"]
    used = orders.records[kind == USED]
    stale = np.minimum(used["version"].astype(np.int64) - 1 - used["base"], MOST_BARS - 1)
    counts = np.bincount(np.maximum(stale, 0)).tolist() if len(used) else []
    weights = [] if weight is None else [weight(each) for each in range(len(counts))]
    return {
        "counts": counts,
        "weights": [] if None in weights else [number(each or 0.0) for each in weights],
        "merged": len(counts) == MOST_BARS,
        "used": len(used),
        "discarded": int((kind == DISCARDED).sum()),
        "lost": int((kind == LOST).sum()),
    }


def heard(
    orders: Orders, place: Ints, facts: FleetFacts | None, influence: Sequence[float] = ()
) -> dict[str, Any] | None:
    """The share of each fifth of the devices, by speed, in the used samples, after bounds, and in all samples.

    Also the coverage of labels.
    """
    if not orders.devices:
        return None
    used = orders.records[orders.records["kind"] == USED]
    by_device = np.bincount(used["device"], used["samples"], orders.devices)
    samples = np.zeros(orders.devices)
    if facts is not None and len(facts.samples) == orders.devices:
        samples[:] = facts.samples
    else:  # those that ever had an order
        samples[orders.records["device"]] = orders.records["samples"]
    fifth = np.minimum(place * 5 // orders.devices, 4)
    result: dict[str, Any] = {
        "groups": QUINTILES if orders.devices >= 5 else QUINTILES[:0],
        "used": numbers(shares(np.bincount(fifth, by_device, 5))),
        "held": numbers(shares(np.bincount(fifth, samples, 5))),
        "never": int((by_device == 0).sum()),
    }
    if len(influence) == orders.devices:
        result["influence"] = numbers(np.bincount(fifth, influence, 5))
    if facts is not None and len(facts.counts) == orders.devices:
        counts = np.array(facts.counts, dtype=np.float64)
        mine = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        result["labels"] = facts.labels[:SHOWN_LABELS]
        result["label_used"] = numbers(shares(by_device @ mine)[:SHOWN_LABELS])
        result["label_held"] = numbers(shares(counts.sum(axis=0))[:SHOWN_LABELS])
        result["remark"] = facts.remark
    return result


def shares(values: npt.NDArray[Any]) -> Floats:
    """The values divided by their sum; zeros if the sum is 0."""
    total = float(values.sum())
    return np.asarray(values / total if total else np.zeros(len(values)))


# Where time went -----------------------------------------------------------------------------------------------------


def where_time_went(orders: Orders) -> dict[str, float | None]:
    """Device seconds of the whole fleet by what became of them. They add up to devices times time."""
    each = orders.records
    kind, training = each["kind"], orders.training
    gone = kind == LOST
    length = each["landed"] - each["sent"]
    total = orders.devices * orders.until
    spent = {
        "training": training[(kind == USED) | (kind == RECEIVED) | (kind == IN_FLIGHT)].sum(),
        "wasted": training[kind == DISCARDED].sum() + length[gone].sum(),
        "fresh": orders.waited[~gone].sum(),
        "transfer": (length - training - orders.waited)[~gone].sum(),
    }
    return {name: number(value) for name, value in (spent | {"waiting": total - sum(spent.values())}).items()}


def buffer_fill(orders: Orders) -> dict[str, Any]:
    """The number of received updates that wait to be used, over time, and their mean wait in seconds."""
    each = orders.records[orders.uploaded]
    resolved = np.where(np.isnan(each["resolved"]), np.inf, each["resolved"])
    times = np.concatenate([each["landed"], resolved])
    steps = np.concatenate([np.ones(len(each)), -np.ones(len(each))])
    order = np.lexsort((-steps, times))
    times, fill = times[order], steps[order].cumsum()
    fill, times = fill[np.isfinite(times)], times[np.isfinite(times)]
    if len(times) > 2 * MOST_POINTS:  # the fullest state in each interval
        column = np.minimum((times / (orders.until or 1.0) * MOST_POINTS).astype(np.int64), MOST_POINTS - 1)
        _, first = np.unique(column, return_index=True)
        fill, times = np.maximum.reduceat(fill, first), times[first]
    waits = (each["resolved"] - each["landed"])[np.isfinite(each["resolved"])]
    return {
        "time": numbers(times),
        "fill": fill.astype(int).tolist(),
        "wait": number(waits.mean()) if len(waits) else 0.0,
        "most": int(fill.max()) if len(fill) else 0,
    }


def waited_for(orders: Orders, place: Ints) -> dict[str, Any]:
    """Which devices uploaded last for a version, and how long after the others: the versions waited for them."""
    used = orders.records[orders.records["kind"] == USED]
    order = np.lexsort((used["landed"], used["version"]))
    version, landed, device = (used[name][order] for name in ("version", "landed", "device"))
    last = np.flatnonzero(np.r_[version[1:] != version[:-1], True]) if len(version) else np.zeros(0, np.int64)
    several = last[(last > 0) & (version[np.maximum(last - 1, 0)] == version[last])]
    gaps = landed[several] - landed[several - 1]
    seconds = np.bincount(device[several], gaps, max(orders.devices, 1))
    count = np.bincount(device[several], minlength=max(orders.devices, 1))
    top = [int(each) for each in np.argsort(-seconds, kind="stable")[:8] if seconds[each] > 0]
    fifth = np.minimum(place * 5 // max(orders.devices, 1), 4)
    return {
        "versions": len(several),
        "seconds": number(gaps.sum()),
        "devices": [[each, number(seconds[each]), int(count[each])] for each in top],
        "fifths": numbers(shares(np.bincount(fifth, seconds[: orders.devices], 5))) if orders.devices >= 5 else [],
    }


# The fleet and the partition -----------------------------------------------------------------------------------------


def fleet_picture(facts: FleetFacts, pace: Floats | None) -> dict[str, Any]:
    """Samples and pace of the devices from fast to slow, and label counts of up to SHOWN_DEVICES devices."""
    known = pace if pace is not None and len(pace) == len(facts.samples) else np.full(len(facts.samples), np.nan)
    order = np.argsort(ranks(known))
    chosen = order if len(order) <= 1_000 else order[np.linspace(0, len(order) - 1, 1_000).astype(int)]
    picture: dict[str, Any] = {
        "device": chosen.tolist(),
        "pace": numbers(known[chosen]),
        "samples": np.array(facts.samples)[chosen].tolist(),
        "total": len(order),
    }
    if facts.counts and len(facts.counts) == len(facts.samples):
        some = (
            chosen
            if len(chosen) <= SHOWN_DEVICES
            else chosen[np.linspace(0, len(chosen) - 1, SHOWN_DEVICES).astype(int)]
        )
        counts = np.array(facts.counts)[some, :SHOWN_LABELS]
        picture |= {"counts": counts.T.tolist(), "columns": some.tolist(), "labels": facts.labels[:SHOWN_LABELS]}
        picture |= {"remark": facts.remark, "labels_total": len(facts.labels)}
    return picture


def number(value: float) -> float | None:
    """A number of six digits; None if it is not finite, as JSON has no other numbers."""
    return float(f"{value:.6g}") if np.isfinite(value) else None


def numbers(values: npt.ArrayLike) -> list[float | None]:
    """Numbers of six digits."""
    return [number(value) for value in np.asarray(values, dtype=np.float64).tolist()]
