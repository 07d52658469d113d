"""What a plan sends to the host is not on the GPU at the peak."""

from __future__ import annotations

import gpu_truth
import pytest
from gpu_pairs import SMALLEST, Pair


def peak_bytes(plan: str) -> int:
    measured = gpu_truth.measured(Pair(SMALLEST, plan))
    assert measured.device_bytes, measured
    return measured.allocated_bytes


@pytest.mark.parametrize(
    ("kept", "offload"),
    [
        ("bf16-z2-full-mb1x1", "oopt"),
        ("bf16-z3-full-mb1x1", "oparam"),
        ("bf16-fsdp-full-mb1x1", "oparam"),
        ("bf16-ddp-none-mb4x1", "oact"),
    ],
)
def test_an_offload_lowers_the_peak(kept: str, offload: str) -> None:
    assert peak_bytes(f"{kept}-{offload}") < 0.95 * peak_bytes(kept)
