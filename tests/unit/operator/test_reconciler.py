"""The reconcile loop of one job: write before acting, drop a decision on conflict, and do nothing at rest."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from memtune.api import SpecError, load_job, reasons
from memtune.api.status import ProbeStatus
from memtune.controller import Blocker, Deletion, JobEvent, Observed
from memtune.controller.observation import PodObservation, RunObservation
from memtune.memory.measured_overhead import JobOverhead
from memtune.planning.next_probe import most_promising
from memtune.wire.names import pod_name, run_name
from memtune.wire.run import Run, TraceRun
from memtune_operator.api_errors import ApiError, ErrorKind
from memtune_operator.backend import Key, Snapshot
from memtune_operator.reconciler import Reconciler, reconcile

KEY = Key("default", "tiny")
NOW = 1_700_000_000.0


def manifest(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "memtune.dev/v1alpha1",
        "kind": "MemoryTunedJob",
        "metadata": {"name": "tiny", "namespace": "default", "uid": "u", "generation": 1},
        "spec": {
            "model": {"architecture": {"hiddenSize": 256, "layers": 2, "heads": 4, "vocabSize": 1000, "ffnSize": 1024}},
            "training": {"globalBatchSize": 4, "sequenceLength": 128},
            "resources": {"gpusPerNode": 1, "gpuMemory": "8Gi", "device": "virtual"},
            "tuning": {"space": {"zeroStages": [1], "checkpointing": ["none"], "backends": ["deepspeed"]}},
            **spec,
        },
    }


class MemoryShell:
    """One job in memory, its pods, and an ordered list of all requests."""

    def __init__(self, job: dict[str, Any] | None) -> None:
        self.job = job
        self.pods: dict[str, PodObservation] = {}
        self.done: list[str] = []
        self.answers: dict[str, list[Exception]] = {}

    async def observe(self, key: Key, now: float) -> Snapshot | None:
        self._answer("observe")
        if self.job is None:
            return None
        read = json.loads(json.dumps(self.job))
        observed = Observed(
            status=read.get("status", {}), runs={run: RunObservation((pod,)) for run, pod in self.pods.items()}
        )
        try:
            return Snapshot(read, observed, load_job(read))
        except SpecError as error:
            return Snapshot(read, observed, problem=Blocker("SpecInvalid", str(error)))

    async def write(self, snapshot: Snapshot, status: dict[str, Any]) -> None:
        self._answer("write")
        self.job = {**snapshot.manifest, "status": status}

    async def remember_trace(self, snapshot: Snapshot, trace: str, now: float) -> bool:
        self.done.append("remember")
        return False

    async def remember_overhead(self, snapshot: Snapshot, measured: JobOverhead) -> bool:
        self.done.append("learn")
        return False

    async def remember_probes(self, snapshot: Snapshot, probes: Sequence[ProbeStatus], now: float) -> bool:
        self.done.append("learn probes")
        return False

    async def create(self, snapshot: Snapshot, runs: Sequence[Run | TraceRun], now: float) -> bool:
        if self.answers.get("create"):
            raise self.answers["create"].pop(0)
        for run in runs:
            name = run_name("tiny", run.kind, run.number)
            recorded = json.dumps(snapshot.status)
            assert f'"{name}"' in recorded, "a run is created only after the status that holds it was written"
            if name not in self.pods:
                self.done.append(f"create {name}")
                self.pods[name] = PodObservation(index=0, name=pod_name("tiny", run.kind, run.number, 0), uid=name)
        return False

    async def delete(self, snapshot: Snapshot, deletions: Sequence[Deletion]) -> None:
        self.done += [f"delete {each.name}" for each in deletions]

    async def tell(self, snapshot: Snapshot, events: Sequence[JobEvent]) -> None:
        self.done += [f"tell {each.reason}" for each in events]

    async def delete_job(self, snapshot: Snapshot) -> None:
        self.done.append("delete job")

    def _answer(self, method: str) -> None:
        self.done.append(method)
        if self.answers.get(method):
            raise self.answers[method].pop(0)


class Ledger:
    """What a watcher was told."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.found: list[dict[str, Any]] = []

    def reconciled(self, before: Snapshot, after: Snapshot, seconds: float) -> None:
        self.told.append("reconciled")
        self.found.append(before.status)

    def failed(self, key: Key) -> None:
        self.told.append("failed")

    def gone(self, key: Key) -> None:
        self.told.append("gone")


def turn(shell: MemoryShell, now: float = NOW) -> tuple[Snapshot | None, float | None]:
    return asyncio.run(reconcile(shell, KEY, most_promising, lambda: now))


def test_a_run_is_recorded_before_it_is_created() -> None:
    shell = MemoryShell(manifest())
    turn(shell)
    assert "create tiny-probe-1" in shell.done
    assert shell.done.index("write") < shell.done.index("create tiny-probe-1")


def test_an_unchanged_job_writes_and_creates_nothing() -> None:
    shell = MemoryShell(manifest())
    turn(shell)
    turn(shell)  # the first one's pods are seen
    shell.done.clear()
    turn(shell)
    assert shell.done == ["observe"]


def test_another_process_continues_an_interrupted_reconciliation() -> None:
    """The write succeeded and nothing after it: the next look creates what was recorded, under the same name."""
    shell = MemoryShell(manifest())
    shell.answers["create"] = [ApiError(ErrorKind.RETRY, "gone away")]
    with pytest.raises(ApiError):
        turn(shell)
    recorded = shell.job
    assert shell.pods == {}
    turn(shell)
    assert shell.job == recorded
    assert [done for done in shell.done if done.startswith("create")] == ["create tiny-probe-1"]


def test_a_write_conflict_prevents_all_actions() -> None:
    shell = MemoryShell(manifest())
    shell.answers["write"] = [ApiError(ErrorKind.CONFLICT, "the object has been modified")]
    turn(shell)
    assert shell.done[:3] == ["observe", "write", "observe"]


def test_a_refused_write_is_an_event_and_nothing_else() -> None:
    shell = MemoryShell(manifest())
    shell.answers["write"] = [ApiError(ErrorKind.REFUSED, "spec.tuning: Invalid value: a rule of a newer CRD")]
    with pytest.raises(ApiError):
        turn(shell)
    assert shell.done == ["observe", "write", "tell StatusRefused"]


def test_a_temporary_write_failure_is_no_event() -> None:
    shell = MemoryShell(manifest())
    shell.answers["write"] = [ApiError(ErrorKind.RETRY, "too many requests")]
    with pytest.raises(ApiError):
        turn(shell)
    assert shell.done == ["observe", "write"]


class PrunedShell(MemoryShell):
    """Its CRD is older than the operator, so unknown fields of a status are pruned."""

    async def write(self, snapshot: Snapshot, status: dict[str, Any]) -> None:
        assert self.done.count("write") < 20, "it writes for ever"
        await super().write(snapshot, {name: value for name, value in status.items() if name != "oomRetries"})


def test_fields_that_the_api_server_drops_are_not_written_again() -> None:
    shell = PrunedShell(manifest())
    turn(shell)
    assert "create tiny-probe-1" in shell.done


def test_an_object_that_refuses_its_status_is_an_event_and_no_operator_failure() -> None:
    shell = MemoryShell(manifest(training=None))
    shell.answers["write"] = [ApiError(ErrorKind.REFUSED, "spec.training: Required value")]
    _, wait = turn(shell)
    assert shell.done == ["observe", "write", "tell SpecInvalid"]
    assert wait == 60, "another CRD may take it, and would tell nobody"


def test_a_job_refused_by_a_new_rule_is_still_reconciled_and_its_runs_continue() -> None:
    """The CRD was upgraded under a running job, and the API server rejects any status while the rule is broken."""

    async def story() -> None:
        shell, ledger = MemoryShell(manifest()), Ledger()
        reconciler = Reconciler(shell, most_promising, lambda: NOW, ledger)
        await reconcile(shell, KEY, most_promising, lambda: NOW)
        assert shell.job is not None
        running = dict(shell.pods)
        assert running
        shell.job["spec"]["resources"]["gpusPerNode"] = 3
        shell.answers["write"] = [ApiError(ErrorKind.REFUSED, "spec.training.globalBatchSize: Invalid value")] * 3
        shell.done.clear()
        for _ in range(3):
            reconciler.wake(KEY)
            while shell.done.count("tell SpecInvalid") < 1 or ledger.told[-1:] != ["reconciled"]:
                await asyncio.sleep(0)
            assert shell.done == ["observe", "write", "tell SpecInvalid"]
            shell.done.clear()
            ledger.told.clear()
        assert shell.pods == running
        await reconciler.stop()

    asyncio.run(asyncio.wait_for(story(), 10))


def test_an_invalid_job_says_why_and_starts_no_pod() -> None:
    shell = MemoryShell(manifest(training={"globalBatchSize": 0, "sequenceLength": 128}))
    turn(shell)
    assert shell.job is not None
    stalled = [each for each in shell.job["status"]["conditions"] if each["type"] == "Stalled"]
    assert "spec.training.globalBatchSize" in stalled[0]["message"]
    assert shell.pods == {}


def test_a_status_edited_by_hand_does_no_harm() -> None:
    for garbage in ({"phase": "Dancing"}, {"probes": "none"}, {"probes": [{"name": 3}]}, {"conditions": [1]}):
        shell = MemoryShell({**manifest(), "status": garbage})
        turn(shell)
        assert shell.job is not None
        assert shell.job["status"]["phase"] in ("Pending", "Predicting", "Probing")


def test_a_deleted_job_is_left_alone() -> None:
    shell = MemoryShell(None)
    assert turn(shell) == (None, None)
    assert shell.done == ["observe"]


def test_the_task_of_a_job_ends_with_it_and_failures_are_reported() -> None:
    async def life() -> list[str]:
        shell, ledger = MemoryShell(None), Ledger()
        shell.answers["observe"] = [ApiError(ErrorKind.RETRY, "no answer", retry_after_seconds=0.0)]
        reconciler = Reconciler(shell, most_promising, lambda: NOW, ledger)
        reconciler.wake(KEY)
        while "failed" not in ledger.told:
            await asyncio.sleep(0)
        reconciler.wake(KEY)
        while "gone" not in ledger.told:
            await asyncio.sleep(0)
        assert reconciler.pending == 0
        return ledger.told

    assert asyncio.run(life()) == ["failed", "gone"]


class Blind(MemoryShell):
    """An operator that may not watch pods."""

    async def observe(self, key: Key, now: float) -> Snapshot | None:
        found = await super().observe(key, now)
        return found and replace(found, job=None, problem=Blocker(reasons.REFUSED, "the operator may not watch Pod"))


def test_an_unwatchable_job_counts_as_an_operator_failure() -> None:
    async def life() -> Blind:
        shell, ledger = Blind(manifest()), Ledger()
        reconciler = Reconciler(shell, most_promising, lambda: NOW, ledger)
        reconciler.wake(KEY)
        while not ledger.told:
            await asyncio.sleep(0)
        await reconciler.stop()
        assert ledger.told[0] == "failed"
        return shell

    shell = asyncio.run(life())
    assert shell.job is not None
    (stalled,) = shell.job["status"]["conditions"]
    assert (stalled["reason"], stalled["message"]) == ("Refused", "the operator may not watch Pod")


def test_an_unwatchable_job_is_reconciled_without_an_event() -> None:
    async def life() -> float | None:
        reconciler = Reconciler(Blind(manifest()), most_promising, lambda: NOW, Ledger())
        wait, *_ = await reconciler._turn(KEY, 0)
        return wait

    assert asyncio.run(life()) == 60.0


def test_writes_of_an_interrupted_reconciliation_reach_the_watcher() -> None:
    async def life() -> list[dict[str, Any]]:
        shell, ledger = MemoryShell(manifest()), Ledger()
        shell.answers["create"] = [ApiError(ErrorKind.RETRY, "no answer", retry_after_seconds=0.0)]
        reconciler = Reconciler(shell, most_promising, lambda: NOW, ledger)
        for told in ("failed", "reconciled"):
            reconciler.wake(KEY)
            while told not in ledger.told:
                await asyncio.sleep(0)
        await reconciler.stop()
        return ledger.found

    (found,) = asyncio.run(life())
    assert "probes" not in found


def test_a_failing_job_does_not_end_the_others() -> None:
    async def life() -> list[str]:
        shell, ledger = MemoryShell(manifest()), Ledger()
        shell.answers["observe"] = [ZeroDivisionError("a mistake of ours")]
        reconciler = Reconciler(shell, most_promising, lambda: NOW, ledger)
        reconciler.wake(KEY)
        reconciler.wake(Key("default", "other"))
        while "reconciled" not in ledger.told:
            await asyncio.sleep(0)
        await reconciler.stop()
        return ledger.told

    assert asyncio.run(life())[:2] == ["failed", "reconciled"]
