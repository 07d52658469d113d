"""The contract of a backend for the reconciler: one suite for the cluster and for a single machine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

import pytest
from reporter import WELL, Act
from reporter_jobs import FIXED, reporter_job

from memtune.api.status import ProbeStatus
from memtune.controller import Deletion, JobEvent
from memtune.controller.observation import PodObservation
from memtune.memory.measured_overhead import JobOverhead, MeasuredOverhead
from memtune.plans.plan import Plan
from memtune.wire.report import Ending
from memtune.wire.run import Run, RunKind
from memtune_operator.api_errors import ApiError, ErrorKind
from memtune_operator.backend import Backend, Key, Snapshot

NAME = "contract"
RUN = Run(RunKind.PROBE, 1, Plan.parse(FIXED["plan"]))
RUN_NAME = f"{NAME}-probe-1"
_SECONDS = 180.0


class World(Protocol):
    """An environment for one job, in which a backend can be restarted as a program can."""

    namespace: str

    def apply(self, job: dict[str, Any]) -> None:
        """Apply the job."""

    def backend(self) -> AbstractAsyncContextManager[Backend]:
        """A backend of a newly started program, which ends with it."""

    def heard(self) -> list[str]:
        """The messages of the job's events."""


Actions = Callable[[Backend, Key], Coroutine[Any, Any, None]]


def run_in_new_programs(world: World, *programs: Actions) -> None:
    """Run each of these with the backend of a newly started program, one after the other."""

    async def run(program: Actions) -> None:
        async with world.backend() as backend:
            await program(backend, Key(world.namespace, NAME))

    for program in programs:
        asyncio.run(run(program))


async def seen(backend: Backend, key: Key, holds: Callable[[Snapshot], bool] = lambda _: True) -> Snapshot:
    """Wait until the job is as expected."""
    deadline = time.monotonic() + _SECONDS
    while True:
        snapshot = await backend.observe(key, time.time())
        if snapshot is not None and holds(snapshot):
            return snapshot
        assert time.monotonic() < deadline, f"not seen within {_SECONDS:.0f} s; what was: {snapshot}"
        await asyncio.sleep(0.1)


def pod_of(snapshot: Snapshot) -> PodObservation | None:
    """The only pod of the run."""
    run = snapshot.observed.runs.get(RUN_NAME)
    return run.pods[0] if run and run.pods else None


def has_started(snapshot: Snapshot) -> bool:
    pod = pod_of(snapshot)
    return pod is not None and pod.started_at_seconds is not None


def has_ended(snapshot: Snapshot) -> bool:
    pod = pod_of(snapshot)
    return pod is not None and pod.exit_code is not None


async def create(backend: Backend, key: Key) -> None:
    """Create a run; a repeated call creates nothing."""
    for _ in range(2):
        assert await backend.create(await seen(backend, key), [RUN], time.time()) is False


class BackendContract:
    """Inherit this with a fixture ``world``."""

    def test_a_missing_job_has_an_empty_snapshot(self, world: World) -> None:
        async def look(backend: Backend, key: Key) -> None:
            assert await backend.observe(key, time.time()) is None

        run_in_new_programs(world, look)

    def test_an_invalid_job_is_seen_with_its_errors(self, world: World) -> None:
        world.apply(reporter_job(NAME, tuning={"mode": "Fixed"}))

        async def look(backend: Backend, key: Key) -> None:
            snapshot = await seen(backend, key)
            assert snapshot.job is None
            assert snapshot.problem is not None
            assert "spec.tuning.plan" in snapshot.problem.message

        run_in_new_programs(world, look)

    def test_a_status_is_written_once_and_never_over_anothers(self, world: World) -> None:
        world.apply(reporter_job(NAME))

        async def write(backend: Backend, key: Key) -> None:
            before = await seen(backend, key)
            await backend.write(before, {"phase": "Probing", "message": "first"})
            with pytest.raises(ApiError) as refused:
                await backend.write(before, {"phase": "Failed", "message": "second"})
            assert refused.value.kind is ErrorKind.CONFLICT

        async def read(backend: Backend, key: Key) -> None:
            snapshot = await seen(backend, key)
            assert snapshot.status == snapshot.observed.status == {"phase": "Probing", "message": "first"}

        run_in_new_programs(world, write, read)

    @pytest.mark.parametrize(
        ("act", "exit_code"), [(WELL, 0), (Act(ending=Ending.DEVICE_OOM), 85)], ids=["well", "out of memory"]
    )
    def test_a_run_is_made_once_and_its_end_outlives_the_program(self, world: World, act: Act, exit_code: int) -> None:
        world.apply(reporter_job(NAME, probe=act))

        async def run(backend: Backend, key: Key) -> None:
            await create(backend, key)
            started = pod_of(await seen(backend, key, has_started))
            ended = pod_of(await seen(backend, key, has_ended))
            assert started is not None
            assert ended is not None
            assert (started.uid, started.index, started.present) == (ended.uid, 0, True)
            assert started.uid
            _check(ended)

        async def look(backend: Backend, key: Key) -> None:
            ended = pod_of(await seen(backend, key, has_ended))
            assert ended is not None
            _check(ended)

        def _check(pod: PodObservation) -> None:
            assert pod.exit_code == exit_code
            assert pod.report is not None
            assert pod.report.ending == act.ending
            assert pod.started_at_seconds is not None
            assert pod.finished_at_seconds is not None
            assert pod.started_at_seconds <= pod.finished_at_seconds <= time.time() + 1

        run_in_new_programs(world, run, look)

    def test_a_deletion_removes_only_the_seen_object(self, world: World) -> None:
        world.apply(reporter_job(NAME, probe=Act(waits=True)))

        async def delete(backend: Backend, key: Key) -> None:
            await create(backend, key)
            snapshot = await seen(backend, key, has_started)
            pod = pod_of(snapshot)
            assert pod is not None
            await backend.delete(snapshot, [Deletion("Pod", pod.name, "of-another", 0)])
            still = pod_of(await seen(backend, key))
            assert still is not None
            assert (still.uid, still.exit_code, still.deleting) == (pod.uid, None, False)
            await backend.delete(snapshot, [Deletion("Pod", pod.name, pod.uid, 0)])
            await seen(backend, key, lambda each: pod_of(each) is None)
            # Deleting what is already gone is no error.
            await backend.delete(snapshot, [Deletion("Pod", pod.name, pod.uid, 0)])

        run_in_new_programs(world, delete)

    def test_measurements_are_known_to_every_later_program(self, world: World) -> None:
        world.apply(reporter_job(NAME, resources={"gpuMemory": "2Gi", "gpuProduct": "NVIDIA-L4", "device": "virtual"}))
        first, second = JobOverhead(7, "one-job", 2**29), JobOverhead(9, "another", 2**30)

        async def learn(backend: Backend, key: Key) -> None:
            before = await seen(backend, key)
            assert before.observed.measured_overhead == MeasuredOverhead()
            for measured in (first, second, first):
                assert await backend.remember_overhead(before, measured) is True

        async def look(backend: Backend, key: Key) -> None:
            assert (await seen(backend, key)).observed.measured_overhead == MeasuredOverhead((first, second))

        run_in_new_programs(world, learn, look)

    def test_probes_are_known_to_every_later_program(self, world: World) -> None:
        world.apply(reporter_job(NAME, resources={"gpuMemory": "2Gi", "gpuProduct": "NVIDIA-L4", "device": "virtual"}))
        probe = ProbeStatus(
            name="a-probe-1",
            number=1,
            plan="bf16-z0-none-mb1x8",
            verdict="device-oom",
            ended_at="2026-03-01T10:00:00Z",
            measured_by="earlier-job",
        )

        async def learn(backend: Backend, key: Key) -> None:
            before = await seen(backend, key)
            assert before.observed.earlier == ()
            assert await backend.remember_probes(before, [probe], 7.0) is True

        async def look(backend: Backend, key: Key) -> None:
            (found,) = (await seen(backend, key)).observed.earlier or ()
            assert (found.plan, found.measured_by) == (probe.plan, probe.measured_by)

        run_in_new_programs(world, learn, look)

    def test_events_are_recorded(self, world: World) -> None:
        world.apply(reporter_job(NAME))

        async def tell(backend: Backend, key: Key) -> None:
            await backend.tell(await seen(backend, key), [JobEvent("Normal", "Predicted", "it fits")])

        run_in_new_programs(world, tell)
        assert world.heard() == ["it fits"]
