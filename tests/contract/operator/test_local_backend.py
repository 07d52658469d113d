"""The shell of this machine, by what holds for every shell."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from reporter import Act
from reporter_jobs import reporter_job
from shell_contract import NAME, RUN_NAME, ShellContract, create, pod_of, seen, told

from memtune.controller import Deletion, Event
from memtune.memory.measured_overhead import JobOutside, Remembered
from memtune.wire.report import Ending
from memtune_operator.backend import Backend, Key
from memtune_operator.local.backend import LocalBackend


class Machine:
    """A state directory, and what jobs of the machine share."""

    namespace = "default"

    def __init__(self, directory: Path, shared: Path) -> None:
        directory.mkdir(exist_ok=True)
        self._directory, self._shared = directory, shared
        self._events: list[Event] = []

    def _new_shell(self) -> LocalBackend:
        return LocalBackend(self._directory, self._events.append, self._shared)

    def heard(self) -> list[str]:
        return [event.message for event in self._events]

    def apply(self, job: dict[str, Any]) -> None:
        self._new_shell().accept(job)

    @asynccontextmanager
    async def shell(self) -> AsyncIterator[Backend]:
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
        return Machine(tmp_path, tmp_path)

    def test_the_last_words_of_a_run_that_was_stopped_are_heard(self, world: Machine, tmp_path: Path) -> None:
        world.apply(reporter_job(NAME, probe=Act(waits=True, noise=1)))

        async def stop(shell: Backend, key: Key) -> None:
            await create(shell, key)
            log = tmp_path / "runs" / RUN_NAME / "log"
            snapshot = await seen(shell, key, lambda _: "[rank 0] x" in log.read_text())
            pod = pod_of(snapshot)
            assert pod is not None
            await shell.delete(snapshot, [Deletion("Pod", pod.name, pod.uid, 30)])
            stopped = pod_of(await seen(shell, key))
            assert stopped is not None
            assert stopped.report is not None
            assert (stopped.deleting, stopped.report.ending) == (True, Ending.TERMINATED)
            assert pod_of(await seen(shell, key)) is None

        told(world, stop)

    def test_jobs_side_by_side_lose_nothing_of_what_each_has_measured(self, tmp_path: Path) -> None:
        machines = [Machine(tmp_path / name, tmp_path) for name in ("one", "another")]
        measured = [JobOutside(at, f"job-{at}", 2**29) for at in range(12)]

        async def learn(shell: Backend, key: Key) -> None:
            snapshot = await seen(shell, key)
            await asyncio.gather(
                *(asyncio.to_thread(asyncio.run, shell.remember_measured(snapshot, each)) for each in measured)
            )

        async def look(shell: Backend, key: Key) -> None:
            assert (await seen(shell, key)).observed.remembered == Remembered(tuple(measured))

        for machine, story in zip(machines, (learn, look), strict=True):
            machine.apply(reporter_job(NAME))
            told(machine, story)

    def test_what_was_traced_before_the_files_were_edited_is_traced_anew_by_the_next_call(self, world: Machine) -> None:
        """A call knows nothing of what happened to the working directory before it; while it goes on, it remembers."""

        async def trace(shell: Backend, key: Key) -> None:
            snapshot = await seen(shell, key)
            assert snapshot.observed.trace == ""
            assert await shell.remember_trace(snapshot, "a trace", 1.0)
            assert (await seen(shell, key)).observed.trace == "a trace"

        for _ in range(2):
            world.apply(reporter_job(NAME, model={"factory": "train:build"}))
            told(world, trace)
