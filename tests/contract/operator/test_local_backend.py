"""The local backend, under the contract of all backends."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from backend_contract import NAME, RUN_NAME, BackendContract, create, pod_of, run_in_new_programs, seen
from reporter import Act
from reporter_jobs import reporter_job

from memtune.controller import Deletion, JobEvent
from memtune.memory.measured_overhead import JobOverhead, MeasuredOverhead
from memtune.wire.report import Ending
from memtune_operator.backend import Backend, Key
from memtune_operator.local.backend import LocalBackend


class Machine:
    """A state directory, and what the machine's jobs share."""

    namespace = "default"

    def __init__(self, directory: Path, shared: Path) -> None:
        directory.mkdir(exist_ok=True)
        self._directory, self._shared = directory, shared
        self._events: list[JobEvent] = []

    def _new_backend(self) -> LocalBackend:
        return LocalBackend(self._directory, self._events.append, self._shared)

    def heard(self) -> list[str]:
        return [event.message for event in self._events]

    def apply(self, job: dict[str, Any]) -> None:
        self._new_backend().accept(job)

    @asynccontextmanager
    async def backend(self) -> AsyncIterator[Backend]:
        backend = self._new_backend()
        backend.on_change(lambda: None)
        try:
            yield backend
        finally:
            await backend.stop()


class TestLocalBackend(BackendContract):
    @pytest.fixture
    def world(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        return Machine(tmp_path, tmp_path)

    def test_the_report_of_a_stopped_run_is_read(self, world: Machine, tmp_path: Path) -> None:
        world.apply(reporter_job(NAME, probe=Act(waits=True, noise=1)))

        async def stop(backend: Backend, key: Key) -> None:
            await create(backend, key)
            log = tmp_path / "runs" / RUN_NAME / "log"
            snapshot = await seen(backend, key, lambda _: "[rank 0] x" in log.read_text())
            pod = pod_of(snapshot)
            assert pod is not None
            await backend.delete(snapshot, [Deletion("Pod", pod.name, pod.uid, 30)])
            stopped = pod_of(await seen(backend, key))
            assert stopped is not None
            assert stopped.report is not None
            assert (stopped.deleting, stopped.report.ending) == (True, Ending.TERMINATED)
            assert pod_of(await seen(backend, key)) is None

        run_in_new_programs(world, stop)

    def test_concurrent_jobs_keep_all_measurements(self, tmp_path: Path) -> None:
        machines = [Machine(tmp_path / name, tmp_path) for name in ("one", "another")]
        measured = [JobOverhead(at, f"job-{at}", 2**29) for at in range(12)]

        async def learn(backend: Backend, key: Key) -> None:
            snapshot = await seen(backend, key)
            await asyncio.gather(
                *(asyncio.to_thread(asyncio.run, backend.remember_overhead(snapshot, each)) for each in measured)
            )

        async def look(backend: Backend, key: Key) -> None:
            assert (await seen(backend, key)).observed.measured_overhead == MeasuredOverhead(tuple(measured))

        for machine, story in zip(machines, (learn, look), strict=True):
            machine.apply(reporter_job(NAME))
            run_in_new_programs(machine, story)

    def test_edited_files_are_traced_again_by_the_next_call(self, world: Machine) -> None:
        """A call does not know what changed in the working directory before it; during the call it remembers."""

        async def trace(backend: Backend, key: Key) -> None:
            snapshot = await seen(backend, key)
            assert snapshot.observed.trace == ""
            assert await backend.remember_trace(snapshot, "a trace", 1.0)
            assert (await seen(backend, key)).observed.trace == "a trace"

        for _ in range(2):
            world.apply(reporter_job(NAME, model={"factory": "train:build"}))
            run_in_new_programs(world, trace)
