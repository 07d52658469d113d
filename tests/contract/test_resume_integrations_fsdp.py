"""The entries of the resumption table for the Trainer and accelerate over FSDP2: any sharding of it, any world."""

from __future__ import annotations

from pathlib import Path

import pytest
from resumes import SUPPORT, Whole

from memtune.resume import Way


@pytest.mark.parametrize(
    ("integration", "saved", "saved_world", "wanted", "wanted_world"),
    [
        ("hf-trainer", "fp32-fsdp-none-mb4x2", 1, "fp32-fsdpsgo-full-mb2x2", 2),
        ("accelerate", "fp32-fsdp-none-mb2x2", 2, "fp32-fsdp-full-mb8x1", 1),
    ],
)
def test_the_loss_goes_on(
    integration: str, saved: str, saved_world: int, wanted: str, wanted_world: int, tmp_path: Path
) -> None:
    whole = Whole(integration, saved, saved_world, tmp_path / "whole", SUPPORT / "fsdp_on_cpu.py")
    whole.goes_on(wanted, wanted_world, Way.DIRECT, tmp_path / "store")
