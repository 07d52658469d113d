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

from memtune.api.status import RunStatus
from memtune.controller import Deletion, JobEvent
from memtune.controller.observation import PodObservation
from memtune.memory.measured_overhead import JobOutside, Remembered
from memtune.plans.plan import Plan
from memtune.wire.report import Ending
from memtune.wire.run import Run, RunKind
from memtune_operator.backend import Backend, Key, Snapshot
from memtune_operator.kubernetes.api_errors import Kind, RefusalError

NAME = "contract"
RUN = Run(RunKind.PROBE, 1, Plan.parse(FIXED["plan"]))
RUN_NAME = f"{NAME}-probe-1"
_SECONDS = 180.0


class World(Protocol):
    """An environment for one job, in which a backend can be restarted as a program can."""

    namespace: str

    def apply(self, job: dict[str, Any]) -> None:
        """Apply the job."""

    def shell(self) -> AbstractAsyncContextManager[Backend]:
        """A backend of a newly started program, which ends with it."""

    def heard(self) -> list[str]:
        """The messages of the job's events."""


Story = Callable[[Backend, Key], Coroutine[Any, Any, None]]


def told(world: World, *stories: Story) -> None:
    """Run each story in a program of its own, one after the other."""

    async def tell(story: Story) -> None:
        async with world.shell() as shell:
            await story(shell, Key(world.namespace, NAME))

    for story in stories:
        asyncio.run(tell(story))


async def seen(shell: Backend, key: Key, holds: Callable[[Snapshot], bool] = lambda _: True) -> Snapshot:
    """Wait until the job is as expected."""
    deadline = time.monotonic() + _SECONDS
    while True:
        snapshot = await shell.observe(key, time.time())
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


async def create(shell: Backend, key: Key) -> None:
    """Create a run; a repeated call creates nothing."""
    for _ in range(2):
        assert await shell.create(await seen(shell, key), [RUN], time.time()) is False


class ShellContract:
    """Inherit this with a fixture ``world``."""

    def test_of_a_job_that_is_not_there_nothing_is_seen(self, world: World) -> None:
        async def look(shell: Backend, key: Key) -> None:
            assert await shell.observe(key, time.time()) is None

        told(world, look)

    def test_what_is_no_job_is_seen_with_what_is_wrong_with_it(self, world: World) -> None:
        world.apply(reporter_job(NAME, tuning={"mode": "Fixed"}))

        async def look(shell: Backend, key: Key) -> None:
            snapshot = await seen(shell, key)
            assert snapshot.job is None
            assert snapshot.problem is not None
            assert "spec.tuning.plan" in snapshot.problem.message

        told(world, look)

    def test_a_status_is_written_once_and_never_over_anothers(self, world: World) -> None:
        world.apply(reporter_job(NAME))

        async def write(shell: Backend, key: Key) -> None:
            before = await seen(shell, key)
            await shell.write(before, {"phase": "Probing", "message": "first"})
            with pytest.raises(RefusalError) as refused:
                await shell.write(before, {"phase": "Failed", "message": "second"})
            assert refused.value.kind is Kind.CONFLICT

        async def read(shell: Backend, key: Key) -> None:
            snapshot = await seen(shell, key)
            assert snapshot.status == snapshot.observed.status == {"phase": "Probing", "message": "first"}

        told(world, write, read)

    @pytest.mark.parametrize(
        ("act", "exit_code"), [(WELL, 0), (Act(ending=Ending.DEVICE_OOM), 85)], ids=["well", "out of memory"]
    )
    def test_a_run_is_made_once_and_its_end_outlives_the_program(self, world: World, act: Act, exit_code: int) -> None:
        world.apply(reporter_job(NAME, probe=act))

        async def run(shell: Backend, key: Key) -> None:
            await create(shell, key)
            started = pod_of(await seen(shell, key, has_started))
            ended = pod_of(await seen(shell, key, has_ended))
            assert started is not None
            assert ended is not None
            assert (started.uid, started.index, started.present) == (ended.uid, 0, True)
            assert started.uid
            _check(ended)

        async def look(shell: Backend, key: Key) -> None:
            ended = pod_of(await seen(shell, key, has_ended))
            assert ended is not None
            _check(ended)

        def _check(pod: PodObservation) -> None:
            assert pod.exit_code == exit_code
            assert pod.report is not None
            assert pod.report.ending == act.ending
            assert pod.started_at_seconds is not None
            assert pod.finished_at_seconds is not None
            assert pod.started_at_seconds <= pod.finished_at_seconds <= time.time() + 1

        told(world, run, look)

    def test_a_deletion_is_of_exactly_what_was_seen(self, world: World) -> None:
        world.apply(reporter_job(NAME, probe=Act(waits=True)))

        async def delete(shell: Backend, key: Key) -> None:
            await create(shell, key)
            snapshot = await seen(shell, key, has_started)
            pod = pod_of(snapshot)
            assert pod is not None
            await shell.delete(snapshot, [Deletion("Pod", pod.name, "of-another", 0)])
            still = pod_of(await seen(shell, key))
            assert still is not None
            assert (still.uid, still.exit_code, still.deleting) == (pod.uid, None, False)
            await shell.delete(snapshot, [Deletion("Pod", pod.name, pod.uid, 0)])
            await seen(shell, key, lambda each: pod_of(each) is None)
            # Deleting what is already gone is no error.
            await shell.delete(snapshot, [Deletion("Pod", pod.name, pod.uid, 0)])

        told(world, delete)

    def test_what_was_measured_is_known_to_every_later_program(self, world: World) -> None:
        world.apply(reporter_job(NAME, resources={"gpuMemory": "2Gi", "gpuProduct": "NVIDIA-L4", "device": "virtual"}))
        first, second = JobOutside(7, "one-job", 2**29), JobOutside(9, "another", 2**30)

        async def learn(shell: Backend, key: Key) -> None:
            before = await seen(shell, key)
            assert before.observed.remembered == Remembered()
            for measured in (first, second, first):
                assert await shell.remember_measured(before, measured) is True

        async def look(shell: Backend, key: Key) -> None:
            assert (await seen(shell, key)).observed.remembered == Remembered((first, second))

        told(world, learn, look)

    def test_probes_are_known_to_every_later_program(self, world: World) -> None:
        world.apply(reporter_job(NAME, resources={"gpuMemory": "2Gi", "gpuProduct": "NVIDIA-L4", "device": "virtual"}))
        probe = RunStatus(
            name="a-probe-1",
            number=1,
            plan="bf16-z0-none-mb1x8",
            verdict="device-oom",
            ended_at="2026-03-01T10:00:00Z",
            measured_by="earlier-job",
        )

        async def learn(shell: Backend, key: Key) -> None:
            before = await seen(shell, key)
            assert before.observed.earlier == ()
            assert await shell.remember_probes(before, [probe], 7.0) is True

        async def look(shell: Backend, key: Key) -> None:
            (found,) = (await seen(shell, key)).observed.earlier or ()
            assert (found.plan, found.measured_by) == (probe.plan, probe.measured_by)

        told(world, learn, look)

    def test_what_happened_is_told(self, world: World) -> None:
        world.apply(reporter_job(NAME))

        async def tell(shell: Backend, key: Key) -> None:
            await shell.tell(await seen(shell, key), [JobEvent("Normal", "Predicted", "it fits")])

        told(world, tell)
        assert world.heard() == ["it fits"]
