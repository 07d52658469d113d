"""Process trees, also on machines that do not list processes."""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path

import pytest

from memtune_runner.launch import process_trees


def test_a_process_that_may_not_be_ended_keeps_nobody_from_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def kill(_pid: int, _number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", kill)
    process_trees.send(signal.SIGKILL, 1)


def test_without_process_information_nothing_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_trees, "_PROC", tmp_path / "none")
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: object())
    process_trees.adopt_orphans()
    die_with_parent = process_trees.dying_with_parent()
    monkeypatch.setattr(os, "getppid", os.getpid)  # as in a child
    die_with_parent()
    assert process_trees.descendants(os.getpid()) == []
    assert not process_trees.catches(signal.SIGTERM, os.getpid())
