"""Trees of processes, also where a machine does not tell of them."""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path

import pytest

from memtune_runner.launch import processes


def test_a_process_that_may_not_be_ended_keeps_nobody_from_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def kill(_pid: int, _number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", kill)
    processes.send(signal.SIGKILL, 1)


def test_where_the_kernel_tells_nothing_there_is_nothing_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_PROC", tmp_path / "none")
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: object())
    processes.adopt_orphans()
    die_with_parent = processes.dying_with_parent()
    monkeypatch.setattr(os, "getppid", os.getpid)  # as a child has it
    die_with_parent()
    assert processes.descendants(os.getpid()) == []
    assert not processes.catches(signal.SIGTERM, os.getpid())
