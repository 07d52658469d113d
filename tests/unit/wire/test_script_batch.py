"""A script whose batches differ from the plan's: the message has both numbers and where to change which."""

from __future__ import annotations

import pytest

from memtune.api.status import SENTENCE
from memtune.plans.plan import Plan
from memtune.wire.applied import own_batch
from memtune.wire.report import Applied

PLAN = Plan.parse("bf16-ddp-none-mb4x4")
READ = "read $MEMTUNE_MICRO_BATCH and $MEMTUNE_ACCUMULATION, or set globalBatchSize"
MICRO_BATCH = (
    "applied.microBatch is 8, but the plan asks for 4: read $MEMTUNE_MICRO_BATCH in the script, or set "
    "tuning.space.microBatch [8]"
)


@pytest.mark.parametrize(
    ("micro_batch", "samples", "is_probe", "expected"),
    [
        (4, 32, False, ""),
        (4, 16, True, ""),  # a probe may be shortened
        (None, None, False, ""),
        (8, 32, False, MICRO_BATCH),
        (
            4,
            16,
            False,
            f"the script's batch is 16, training.globalBatchSize 32: {READ} 16, tuning.space.microBatch [4]",
        ),
        (None, 64, True, f"the script's batch is 64, training.globalBatchSize 32: {READ} 64"),
    ],
)
def test_both_batches_are_reported(micro_batch: int | None, samples: int | None, is_probe: bool, expected: str) -> None:
    seen = Applied(micro_batch=micro_batch, samples_per_step=samples)
    assert own_batch(PLAN, seen, 2, is_probe) == expected


def test_the_script_batch_message_fits_the_status() -> None:
    seen = Applied(micro_batch=16, samples_per_step=8192)
    assert len(own_batch(Plan.parse("bf16-ddp-none-mb4x32"), seen, 8, is_probe=True)) <= SENTENCE
