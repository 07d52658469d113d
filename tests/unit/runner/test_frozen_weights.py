"""A frozen base in fp32 under autocast is told, since its copies take more than the base in 16 bits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from memtune.plans.plan import Plan
from memtune.wire.run import RunKind
from memtune_runner.rank import script_warnings
from memtune_runner.rank.settings import Settings
from memtune_runner.watch.applied_plan import AppliedPlan
from memtune_runner.watch.batch_counts import BatchCounts

SETTINGS = Settings(Plan.parse("bf16-ddp-none-mb1x1"), RunKind.TRAIN, "accelerate", 1, 32)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    script_warnings.reset()
    yield
    script_warnings.reset()


@pytest.mark.parametrize(
    ("dtype", "learns", "casts", "told"),
    [
        (torch.float32, False, True, True),
        (torch.float32, True, True, False),
        (torch.bfloat16, False, True, False),
        (torch.float32, False, False, False),
    ],
)
def test_a_frozen_weight_in_fp32_is_to_be_loaded_as_autocast_casts_it(
    dtype: torch.dtype, learns: bool, casts: bool, told: bool
) -> None:
    applied = AppliedPlan(SETTINGS, BatchCounts())
    layer = torch.nn.Linear(4, 4, bias=False, dtype=dtype).requires_grad_(learns)
    with torch.autocast("cpu", torch.bfloat16, enabled=casts):
        applied.inner_forward_began(layer)
    assert not applied.looks_for_compute_dtype
    assert script_warnings.collected().endswith("load them in bfloat16") is told
