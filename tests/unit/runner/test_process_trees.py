"""Process trees, also on machines that do not list processes."""

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


def test_without_process_information_nothing_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_PROC", tmp_path / "none")
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: object())
    processes.adopt_orphans()
    die_with_parent = processes.dying_with_parent()
    monkeypatch.setattr(os, "getppid", os.getpid)  # as in a child
    die_with_parent()
    assert processes.descendants(os.getpid()) == []
    assert not processes.catches(signal.SIGTERM, os.getpid())
