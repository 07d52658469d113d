"""What a run was asked for beside its plan is told where it did not happen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memtune.plans.plan import Plan
from memtune.wire.report import Device
from memtune.wire.run import RunKind
from memtune_runner.rank.settings import Settings, Shrink
from memtune_runner.watch.unmet_requests import kept_memory, larger_evaluation

SETTINGS = Settings(
    Plan.parse("fp32-ddp-none-mb4x2"), RunKind.TRAIN, "env", 8, 32, device=Device.VIRTUAL, gpu_memory_bytes=1 << 30
)


@pytest.mark.parametrize(
    ("asked", "seen", "is_told"), [(2, 8, True), (2, 2, False), (2, 1, False), (2, None, False), (None, 8, False)]
)
def test_an_evaluation_in_larger_batches_than_requested_is_reported(
    asked: int | None, seen: int | None, is_told: bool
) -> None:
    told = larger_evaluation(replace(SETTINGS, evaluation_batch=asked), seen)
    assert told.startswith("the evaluation took batches of 8, where at most 2 were asked for") is is_told


@pytest.mark.parametrize(
    ("after", "steps", "kind", "is_told"),
    [
        (12, 6, RunKind.TRAIN, True),
        (6, 6, RunKind.TRAIN, True),  # nothing trains after the last step
        (3, 6, RunKind.TRAIN, False),
        (12, 6, RunKind.PROBE, False),
    ],
)
def test_a_rehearsal_that_loses_no_memory_is_reported(after: int, steps: int, kind: RunKind, is_told: bool) -> None:
    told = kept_memory(replace(SETTINGS, kind=kind, shrink=Shrink(after, 1 << 29)), steps)
    assert told.startswith(f"resources.shrink takes memory after step {after}, and the training had only 6") is is_told
    assert kept_memory(SETTINGS, steps) == ""
