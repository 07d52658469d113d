"""The shell of this machine, by what holds for every shell."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from shell_contract import ShellContract

from memtune.decide import Event
from memtune_operator.local import LocalShell
from memtune_operator.shell import Shell


class Machine:
    """A state directory."""

    namespace = "default"

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._events: list[Event] = []

    def _new_shell(self) -> LocalShell:
        return LocalShell(self._directory, self._events.append, self._directory)

    def heard(self) -> list[str]:
        return [event.message for event in self._events]

    def apply(self, job: dict[str, Any]) -> None:
        self._new_shell().accept(job)

    @asynccontextmanager
    async def shell(self) -> AsyncIterator[Shell]:
        shell = self._new_shell()
        shell.on_change(lambda: None)
        try:
            yield shell
        finally:
            await shell.stop()


class TestLocalShell(ShellContract):
    @pytest.fixture
    def world(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        return Machine(tmp_path)
