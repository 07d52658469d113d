"""The forks that trace the steps of published runs."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from throughput import DATA, read_rows


def test_a_row_whose_process_was_killed_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import emulated_steps_run  # imports transformers, which each worker would otherwise do as it collects

    def killed(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(emulated_steps_run, "trace", killed)
    file, row = tmp_path / "told.jsonl", read_rows(DATA)[0]
    emulated_steps_run.in_a_fork(row, 2, file)
    assert json.loads(file.read_text()) == {"row": row.id, "layers": 2, "problem": "it ended with -9"}
