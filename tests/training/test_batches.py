"""Batches: which samples, in which order and as which tensors, as a function of device, ticket and slice."""

from typing import Any

import numpy as np
import pytest
import torch

from offbeat.core.streams import stream
from offbeat.data.dataset import IGNORED
from offbeat.data.samples import LazyDevices, Ragged
from offbeat.data.transforms import Flip, InputPipeline, Standardisation
from offbeat.training.batches import LOADED, Batches

SEED = 5


class Fives:
    """Device d has samples 5 d to 5 d + 4."""

    def samples(self, device: int) -> Any:
        return np.arange(5 * device, 5 * device + 5)


def numbered(count: int = 50) -> Batches:
    """Sample k is the number k."""
    return Batches(np.arange(count, dtype=np.float32), np.arange(count), Fives(), SEED)


def test_every_device_ticket_and_slice_has_an_order_of_its_own() -> None:
    batches = numbered()
    assert (
        batches.order(2, 7, 3, 2).tolist() == stream(SEED, "batches", 2, 7, 3).permutation(np.arange(10, 15)).tolist()
    )
    orders = [batches.order(0, ticket, k, 2).tolist() for ticket in range(4) for k in range(4)]
    assert len({tuple(order) for order in orders}) > 8
    assert batches.order(1, 7, 3, None).tolist() == [5, 6, 7, 8, 9]


def test_every_device_ticket_and_slice_has_transforms_of_its_own() -> None:
    batches = Batches(
        np.zeros((50, 1, 2, 2)), np.arange(50), Fives(), SEED, pipeline=InputPipeline(transforms=(Flip(),))
    )
    drawn = set()
    for keys in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)):
        random = batches.transforming(*keys)
        assert random is not None
        drawn.add(random.integers(2**62))
    assert len(drawn) == 4
    assert numbered().transforming(0, 0, 0) is None


@pytest.mark.parametrize(("size", "steps"), [(1, 5), (2, 3), (4, 2), (5, 1), (9, 1), (None, 1)])
def test_the_last_batch_of_a_slice_may_be_smaller(size: int | None, steps: int) -> None:
    batches = numbered()
    assert batches.steps(1, size) == steps
    gathered = list(batches.gather(1, batches.order(1, 0, 0, size), size))
    assert len(gathered) == steps
    assert sorted(float(x) for batch in gathered for x in batch.x) == [5, 6, 7, 8, 9]
    assert all(torch.equal(batch.x, batch.y) for batch in gathered)


def test_a_probe_is_a_batch_without_repetition_and_never_more_than_there_is() -> None:
    batches = numbered()
    for size, count in ((2, 2), (9, 5), (None, 5)):
        probe = batches.probe(1, 0, 0, size)
        assert len(set(probe.tolist())) == count and set(probe.tolist()) <= {5, 6, 7, 8, 9}


def test_an_evaluation_has_every_sample_once_in_its_order() -> None:
    batches = numbered()
    found = [batch.y.tolist() for batch in batches.for_evaluation(np.arange(5.0), np.arange(5), 2)]
    assert found == [[0, 1], [2, 3], [4]]


def test_numbers_of_another_type_are_written_whatever_stands_in_the_array_before() -> None:
    out = np.full(2, 0x7F800001, dtype=np.uint32).view(np.float32)  # a NaN that the processor complains about
    numbered().write(np.arange(5.0), np.array([3, 1]), out)
    assert out.tolist() == [3.0, 1.0]


def test_data_that_are_loaded_device_by_device_are_that_device_s_and_only_a_few_are_kept() -> None:
    loads: list[int] = []

    def load(device: int) -> Any:
        loads.append(device)
        return np.arange(5.0) + 5 * device, np.arange(5) + 5 * device

    batches = Batches(LazyDevices(np.full(10, 5), load), None, Fives(), SEED)
    for device in range(LOADED + 1):
        (batch,) = batches.gather(device, Fives().samples(device)[[4, 0]], None)
        assert batch.x.tolist() == batch.y.tolist() == [5 * device + 4, 5 * device]
        assert batches.targets(device).tolist() == Fives().samples(device).tolist()
    assert loads == list(range(LOADED + 1))
    batches.targets(LOADED)
    assert loads[LOADED + 1 :] == []
    batches.targets(0)  # which had to make room
    assert loads[LOADED + 1 :] == [0]


def test_padding_of_targets_is_what_no_loss_looks_at() -> None:
    rows = Ragged.of([[1, 2], [3], [4], [5], [6]])
    batches = Batches(rows, rows, Fives(), SEED)
    (batch,) = batches.gather(0, np.array([1, 0]), None)
    assert batch.x.tolist() == [[3, 0], [1, 2]]
    assert batch.y.tolist() == [[3, IGNORED], [1, 2]]


def test_bytes_become_the_same_numbers_elsewhere_than_on_the_processor() -> None:
    norm = Standardisation(mean=(0.5,), std=(0.25,))
    pixels = np.array([0, 51, 255], dtype=np.uint8).reshape(3, 1, 1, 1)
    batches = Batches(pixels, np.arange(3), Fives(), SEED, pipeline=InputPipeline(standardisation=norm))
    # (0 - 0.5) / 0.25, (0.2 - 0.5) / 0.25, (1 - 0.5) / 0.25
    assert batches.standardised(torch.from_numpy(pixels)).ravel().tolist() == pytest.approx([-2.0, -1.2, 2.0])
