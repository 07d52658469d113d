"""The resume table's entries for the Trainer and accelerate over DDP and FSDP2, in any world."""

from __future__ import annotations

from pathlib import Path

import pytest
import small_trainings
from resumed_training import PROGRAMS, Whole

from memtune.plans.resume import Way


@pytest.mark.parametrize(
    ("integration", "saved", "saved_world", "wanted", "wanted_world"),
    [
        ("hf-trainer", "fp32-ddp-none-mb4x2", 1, "fp32-ddp-full-mb2x2", 2),
        ("hf-trainer", "fp32-fsdp-none-mb4x2", 1, "fp32-fsdpsgo-full-mb2x2", 2),
        ("accelerate", "fp32-ddp-none-mb2x2", 2, "fp32-ddp-full-mb4x2", 1),
        ("accelerate", "fp32-fsdp-none-mb2x2", 2, "fp32-fsdp-full-mb8x1", 1),
    ],
)
def test_a_relaunch_continues_with_the_same_loss(
    integration: str, saved: str, saved_world: int, wanted: str, wanted_world: int, tmp_path: Path
) -> None:
    worker = PROGRAMS / "fsdp_on_cpu.py" if "fsdp" in saved else small_trainings.WORKER
    whole = Whole(integration, saved, saved_world, tmp_path / "whole", worker)
    whole.goes_on(wanted, wanted_world, Way.DIRECT, tmp_path / "store")
