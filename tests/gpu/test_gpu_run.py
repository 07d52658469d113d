"""The whole product on CUDA: `memtune run` from the first probe to the end, with an out-of-memory between."""

from __future__ import annotations

from pathlib import Path

from whole_product import gets_up_again

from memtune.report import Device


def test_a_job_gets_up_again(tmp_path: Path) -> None:
    gets_up_again(Device.CUDA, tmp_path)
