"""The whole product on CUDA: `memtune run` from the first probe to the end, with an out-of-memory between."""

from __future__ import annotations

from pathlib import Path

import pytest
from whole_product import gets_up_again

from memtune.wire.report import Device


def test_a_job_gets_up_again(tmp_path: Path) -> None:
    pytest.importorskip("pydantic", reason="memtune run reads the job by pydantic, which is not installed")
    gets_up_again(Device.CUDA, tmp_path)
