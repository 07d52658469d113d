"""accelerate goes on over DeepSpeed from what it saved there, with another accumulation in the midst of an epoch."""

from __future__ import annotations

from pathlib import Path

from resumes import Whole

from memtune.resume import Way


def test_the_loss_goes_on(tmp_path: Path) -> None:
    whole = Whole("accelerate", "fp32-z3-none-mb4x2-bk1m", 1, tmp_path / "whole")
    whole.goes_on("fp32-z3-full-mb2x4-bk1m", 1, Way.DIRECT, tmp_path / "store")
