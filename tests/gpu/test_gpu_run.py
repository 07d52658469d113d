"""The whole product on CUDA: `memtune run` from the first probe to the end, with an out-of-memory between."""

from __future__ import annotations

from pathlib import Path

import pytest
from complete_job_run import assert_job_recovers_and_finishes

from memtune.wire.report import Device


def test_a_job_recovers_from_an_out_of_memory(tmp_path: Path) -> None:
    pytest.importorskip("pydantic", reason="memtune run reads the job by pydantic, which is not installed")
    assert_job_recovers_and_finishes(Device.CUDA, tmp_path)
