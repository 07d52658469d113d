"""The virtual GPU against torch's profiler, which sees every byte of the CPU allocator."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest
import torch
from memory_truth import Seen, assert_agree, counted, profiled
from small_models import CASES, train

from memtune.units import GIB
from memtune_runner.virtual.gpu import VirtualGpu

STEPS = 3

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    # Garbage collection decides when memory is free; both runs must agree on it.
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def loop(name: str, checkpointed: bool) -> Callable[[Callable[[], None]], None]:
    return lambda step_ended: train(CASES[name], checkpointed, STEPS, step_ended)


@pytest.mark.parametrize("checkpointed", [False, True], ids=["plain", "checkpointed"])
@pytest.mark.parametrize("name", CASES)
def test_virtual_gpu_and_profiler_count_the_same_memory(name: str, checkpointed: bool) -> None:
    case = CASES[name]
    train(case, checkpointed, 1, lambda: None)  # creates what exists once per process
    truth, (seen, left_bytes) = profiled(loop(name, checkpointed)), counted(loop(name, checkpointed))
    assert len(truth) == STEPS
    assert truth[0].peak_bytes > 100_000
    assert left_bytes == 0, "everything is freed with the model"
    assert_agree(seen, truth, case.exact, case.excess_bytes)


@pytest.mark.parametrize("name", ["perceptron", "encoder", "decoder"])
def test_checkpointing_lowers_the_peak(name: str) -> None:
    def last(checkpointed: bool) -> Seen:
        return counted(loop(name, checkpointed))[0][-1]

    assert last(True).peak_bytes < last(False).peak_bytes
    assert last(True).end_bytes == last(False).end_bytes


def test_profiler_and_virtual_gpu_agree_on_a_tensor_computed_by_hand() -> None:
    with VirtualGpu(GIB) as gpu:
        kept = torch.zeros(1000, 1000)
        view = kept[10:].t()
        assert gpu.memory_stats()["requested_bytes.all.current"] == 4_000_000
        del kept
        assert gpu.memory_stats()["requested_bytes.all.current"] == 4_000_000
        del view
        assert gpu.memory_stats()["requested_bytes.all.current"] == 0
