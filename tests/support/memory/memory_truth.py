"""Memory of a training loop, measured by torch's own profiler and by the virtual GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch.profiler import ProfilerActivity, profile, record_function

from memtune.units import GIB
from memtune_runner.virtual.gpu import VirtualGpu

_END_OF_STEP = "end of step"


class Seen(NamedTuple):
    """One step's peak, and the bytes left at its end."""

    peak_bytes: int
    end_bytes: int


Train = Callable[[Callable[[], None]], None]


def profiled(train: Train) -> list[Seen]:
    """The profiler's view of a loop that reports the end of each step."""

    def step_ended() -> None:
        with record_function(_END_OF_STEP):
            pass

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        train(step_ended)
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() in ("[memory]", _END_OF_STEP)]
    seen, current, peak = [], 0, 0
    for event in sorted(events, key=lambda each: each.start_ns()):
        if event.name() == _END_OF_STEP:
            seen.append(Seen(peak, current))
            peak = current
        else:
            current += event.nbytes()
            peak = max(peak, current)
    return seen


def counted(train: Train) -> tuple[list[Seen], int]:
    """The virtual GPU's count, and what is left at the end."""
    seen: list[Seen] = []

    def step_ended() -> None:
        stats = gpu.memory_stats()
        seen.append(Seen(stats["requested_bytes.all.peak"], stats["requested_bytes.all.current"]))
        gpu.reset_peak_memory_stats()

    with VirtualGpu(GIB) as gpu:
        train(step_ended)
    return seen, gpu.memory_stats()["requested_bytes.all.current"]


def assert_agree(seen: list[Seen], truth: list[Seen], exact: bool, excess_bytes: int) -> None:
    """Memory at each step's end is equal; its peak too, as far as counting tensors can see it."""
    assert [each.end_bytes for each in seen] == [each.end_bytes for each in truth]
    for ours, theirs in zip(seen, truth, strict=True):
        missed_bytes = theirs.peak_bytes - ours.peak_bytes
        if exact:
            # If the first step's peak is in the optimizer, its kernel wraps three scalars of 4 bytes.
            assert missed_bytes in (0, 12, -excess_bytes)
        else:
            assert 0 <= missed_bytes <= 0.01 * theirs.peak_bytes
