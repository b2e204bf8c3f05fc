"""What a case is, and the random case of a seed."""

import json
from collections.abc import Callable, Iterable
from math import inf
from typing import Any

import msgspec
import numpy as np
from flwr.app import ConfigRecord, RecordDict
from msgspec import Struct, structs

from offbeat.algorithms import POLICIES
from offbeat.core.errors import InvalidInput
from offbeat.core.parameters import Vector
from offbeat.core.policy import Policy
from offbeat.core.streams import stream
from offbeat.fleet import FLEETS
from offbeat.flower.protocol.codec import BODY, pack
from offbeat.flower.protocol.messages import Refusal, UpdateReply


class Case(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One case; the defaults are the simplest values, to which a failing case is shrunk."""

    driver: str = "virtual"
    algorithm: str = "fedasync"
    settings: dict[str, Any] = {}
    seed: int = 0
    devices: int = 4
    updates: int = 10
    epochs: int = 1
    fleet: str = "ratio"
    network: dict[str, float] = {}
    on_off: tuple[float, float] | None = None
    failures: dict[str, float] = {}
    kills: tuple[float, ...] = ()
    """Shares of the run after which it is killed and resumed."""
    delayed: float = 0.0
    """Probability of a reply that takes up to 20 s more, on the grid."""
    duplicated: float = 0.0
    lost: float = 0.0
    comes_and_goes: float = 0.0
    """Probability that a node is gone for some seconds after a message."""
    polls: float = 0.5
    """Shortest time between two looks of the server, on the grid."""
    skew: float = 1.0
    """Factor on the training time that devices claim."""
    hostile: str = ""
    """What the first quarter of the devices sends, one device at least; empty: nothing hostile."""


HOSTILE: dict[str, Callable[[UpdateReply, Vector], RecordDict]] = {
    "huge": lambda reply, model: pack(reply, np.full_like(model, 3e38)),
    "far": lambda reply, model: pack(reply, model + np.float32(1e7)),
    "nan": lambda reply, model: pack(reply, np.full_like(model, np.nan)),
    "short": lambda reply, model: pack(reply, model[:-1]),
    "ticket": lambda reply, model: pack(structs.replace(reply, ticket=reply.ticket + 1), model),
    "leg": lambda reply, model: pack(structs.replace(reply, leg=0), model),
    "steps": lambda reply, model: pack(structs.replace(reply, steps=2**53), model),
    "samples": lambda reply, model: pack(structs.replace(reply, samples=2**40), model),
    "extras": lambda reply, model: pack(structs.replace(reply, extras={"slot": 1e300}), model),
    "refusal": lambda reply, model: pack(Refusal(reason="no\nrun ended\n" * 150)),
    "garbage": lambda reply, model: RecordDict({BODY: ConfigRecord({"json": "[" * 50_000})}),
    "bytes": lambda reply, model: RecordDict({BODY: ConfigRecord({"json": b"\\0"})}),
    "nothing": lambda reply, model: RecordDict(),
}


def random_case(seed: int) -> Case:
    """The case of this seed."""
    random = stream(seed, "torture")

    def one_of(values: Iterable[Any]) -> Any:
        found = list(values)
        return found[int(random.integers(len(found)))]

    def sometimes(share: float, value: Any, otherwise: Any) -> Any:
        return value if random.random() < share else otherwise

    devices, grid = int(random.integers(2, 13)), bool(random.random() < 0.5)
    name = one_of(POLICIES)
    return Case(
        driver="grid" if grid else "virtual",
        algorithm=name,
        settings=_settings(name, devices, random, one_of),
        seed=int(random.integers(2**31)),
        devices=devices,
        updates=int(random.integers(3, 25)),
        epochs=int(random.integers(1, 5)),
        fleet=one_of(sorted(set(FLEETS) - {"trace", "record"})),
        network=one_of(
            [{}, {"uplink_mbps": inf, "downlink_mbps": inf, "latency": 0.0}, {"uplink_mbps": 0.001, "latency": 2.0}]
        ),
        on_off=None if grid else one_of([None, (60.0, 20.0), (200.0, 1.0), (5.0, 5.0)]),
        failures={}
        if grid
        else one_of(
            [
                {},
                {"vanish": 0.2, "lost_upload": 0.1, "rejoin_seconds": 0.0, "detect_seconds": 0.0},
                {"vanish": 0.1, "rejoin_seconds": 15.0, "detect_seconds": 4.0},
                {"lost_upload": 0.5, "detect_seconds": 30.0},
            ]
        ),
        kills=tuple(sorted(random.random(int(random.integers(0, 3))).round(3).tolist())),
        delayed=sometimes(0.5, 0.3, 0.0) if grid else 0.0,
        duplicated=sometimes(0.5, 0.3, 0.0) if grid else 0.0,
        lost=sometimes(0.3, 0.1, 0.0) if grid else 0.0,
        comes_and_goes=sometimes(0.3, 0.1, 0.0) if grid else 0.0,
        polls=one_of([0.5, 3.0, 10.0]) if grid else 0.5,
        skew=one_of([1.0, 0.0, 1e9, 1.5]) if grid else 1.0,
        hostile=sometimes(0.6, one_of(HOSTILE), "") if grid else "",
    )


def _settings(name: str, devices: int, random: np.random.Generator, one_of: Callable[[Iterable[Any]], Any]) -> Any:
    """Random settings of an algorithm, among those that fit any fleet."""
    policy, found = POLICIES[name], dict[str, Any]()
    fields = policy.model_fields
    for field in ("concurrency", "cohort", "max_in_flight", "buffer"):
        if field in fields:
            found[field] = int(random.integers(1, devices + 1))
    if "buffer" in found and "concurrency" in found:
        found["buffer"] = min(found["buffer"], found["concurrency"])
    if "staleness_limit" in fields:
        found["staleness_limit"] = one_of([1.0, 2.0, 10.0])
    if "on_notice" in fields:
        found["on_notice"] = one_of(["finish", "last-finished"])
    if "while_asking" in fields:
        found["while_asking"] = one_of(["wait", "train"])
    for _ in range(len(found) + 1):  # drop what this algorithm does not allow
        try:
            policy(**found).check(devices)
        except (InvalidInput, ValueError):
            if not found:
                break
            found.popitem()
    return found


def policy_of(case: Case) -> Policy:
    """The policy of a case."""
    policy = POLICIES[case.algorithm]
    more = {"rounds": 20, "time_budget": 400.0} if {"rounds", "time_budget"} <= policy.model_fields.keys() else {}
    return policy(**{**more, **case.settings})


def text_of(case: Case) -> str:
    """A case as the argument of `--case`."""
    return json.dumps(msgspec.to_builtins(case))


def case_of(text: str) -> Case:
    """The case of such an argument."""
    return msgspec.convert(json.loads(text), Case)
