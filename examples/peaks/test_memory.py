"""Fails when a change of train.py takes more GPU memory than before. Run: pytest test_memory.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

TRAIN = Path(__file__).parent / "train.py"


def test_eight_gpus_take_no_more_than_they_did(assert_peak: Any) -> None:
    assert_peak(f"torchrun --nproc-per-node 8 {TRAIN}")


def test_one_small_gpu_is_enough_for_short_sequences(assert_peak: Any) -> None:
    assert_peak(f"torchrun {TRAIN} --length 256", gpu="t4-16gb", at_most="12 GiB")
