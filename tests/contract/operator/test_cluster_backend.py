"""The Kubernetes backend: what a job sees of pods and nodes, and how often the API server is asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from memtune.api import reasons
from memtune.controller import JobEvent
from memtune.planning.next_probe import most_promising
from memtune.plans.knobs import NO_CHECKPOINTING, Precision, Sharding
from memtune.plans.plan import Plan
from memtune.units import GIB, MIB
from memtune.wire.report import Ending, Memory, Report
from memtune.wire.run import Run, RunKind
from memtune_operator.api_errors import ApiError, ErrorKind
from memtune_operator.backend import Key, Snapshot
from memtune_operator.kubernetes.backend import KubernetesBackend
from memtune_operator.kubernetes.client import Change, Client
from memtune_operator.pods.gangs import Gang
from memtune_operator.pods.security_policy import Policy
from memtune_operator.reconciler import reconcile
from memtune_operator.settings import Settings

KEY = Key("default", "tiny")
NOW = 1_700_000_000.0
PROBE = Run(RunKind.PROBE, 1, Plan(Precision.BF16, Sharding.ZERO_0, NO_CHECKPOINTING, 1, 1))


def manifest(uid: str = "u") -> dict[str, Any]:
    return {
        "apiVersion": "memtune.dev/v1alpha1",
        "kind": "MemoryTunedJob",
        "metadata": {"name": "tiny", "namespace": "default", "uid": uid, "generation": 1, "resourceVersion": "1"},
        "spec": {
            "model": {"architecture": {"hiddenSize": 256, "layers": 2, "heads": 4, "vocabSize": 1000, "ffnSize": 1024}},
            "training": {"globalBatchSize": 4, "sequenceLength": 128},
            "resources": {"gpusPerNode": 1, "gpuMemory": "8Gi"},
        },
    }


def pod(node: str) -> dict[str, Any]:
    owner = {"kind": "MemoryTunedJob", "name": "tiny", "uid": "u", "controller": True}
    labels = {"memtune.dev/run": "tiny-probe-1", "memtune.dev/index": "0"}
    metadata = {"namespace": "default", "name": "tiny-probe-1-0", "uid": "p", "labels": labels}
    spec = {"nodeName": node, "containers": [{"name": "trainer"}]}
    return {"metadata": {**metadata, "ownerReferences": [owner]}, "spec": spec}


def ready(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}


class Server:
    """One job, its pods, the nodes, and a refusal for each POST; the last one repeats."""

    def __init__(self) -> None:
        self.job = manifest()
        self.coming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.nodes = [ready("a")]
        self.taken: dict[str, Any] | None = None
        self.kept: dict[str, Any] | None = None
        self.refusals: list[ApiError] = []
        self.watch_refusal: ApiError | None = None
        self.nodes_refusal: ApiError | None = None
        self.events: set[str] = set()
        self.deleted: list[str] = []
        self.runs: list[str] = []
        self.template_refusals: list[ApiError] = []
        self.posts = 0
        self.dry_runs = 0
        self.node_lists = 0

    async def read(self, api_version: str, kind: str, namespace: str, name: str) -> dict[str, Any]:
        if kind == "MemoryTunedJob":
            return self.job
        found = self.kept if kind == "ConfigMap" else self.taken
        if found is None:
            raise ApiError(ErrorKind.ABSENT, "not found")
        return found

    async def list(self, api_version: str, kind: str) -> Sequence[dict[str, Any]]:
        self.node_lists += 1
        await asyncio.sleep(0)
        if self.nodes_refusal:
            raise self.nodes_refusal
        return list(self.nodes)

    async def create(self, manifest: dict[str, Any], dry_run: bool = False) -> None:
        if dry_run:
            self.dry_runs += 1
            if self.template_refusals:
                raise self.template_refusals.pop(0)
            return
        if manifest["kind"] == "Event":
            self.events.add(manifest["metadata"]["name"])
            return
        if manifest["kind"] == "ConfigMap":
            self.kept = manifest
            return
        self.posts += 1
        self.runs += [manifest["metadata"]["name"]] if manifest["kind"] == "Service" else []
        if self.refusals:
            raise self.refusals.pop(0) if len(self.refusals) > 1 else self.refusals[0]

    async def replace(self, manifest: dict[str, Any]) -> None:
        assert self.kept
        assert manifest["metadata"]["name"] == self.kept["metadata"]["name"]
        self.kept = manifest

    async def replace_status(self, job: dict[str, Any], status: dict[str, Any]) -> None:
        self.job = {**job, "status": status}

    async def delete(self, manifest: dict[str, Any], grace_seconds: int | None) -> None:
        self.deleted.append(manifest["metadata"]["name"])

    async def changes(
        self, api_version: str, kind: str, namespace: str, selector: str, since: str
    ) -> AsyncIterator[Change]:
        if self.watch_refusal:
            raise self.watch_refusal
        yield Change(None)
        while kind == "Pod":
            yield Change(await self.coming.get())
        await asyncio.Event().wait()


class Life:
    """A backend that watches the server for the duration of a test."""

    def __init__(self, server: Server, *gangs: Gang, prices: dict[str, float] | None = None) -> None:
        settings = Settings("runner:1", Policy(), identity="me", gangs=frozenset(gangs), gpu_hour_prices=prices or {})
        self.shell = KubernetesBackend(cast("Client", server), settings)

    async def __aenter__(self) -> KubernetesBackend:
        self._task = asyncio.create_task(self.shell.follow(lambda _: None))
        return self.shell

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()


async def seen(shell: KubernetesBackend, now: float = NOW) -> Snapshot:
    snapshot = await shell.observe(KEY, now)
    assert snapshot is not None
    return snapshot


def test_a_pod_on_a_node_that_just_came_is_not_lost() -> None:
    """An autoscaler adds a node, and a pod runs on it before nodes are listed again: its run must not restart."""

    async def life() -> None:
        server = Server()
        async with Life(server) as shell:
            await seen(shell)
            server.nodes.append(ready("new"))
            server.coming.put_nowait(pod("new"))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            (found,) = (await seen(shell, NOW + 1)).observed.runs["tiny-probe-1"].pods
        assert not found.node_lost

    asyncio.run(life())


def test_a_trace_pod_that_an_older_operator_made_belongs_to_no_run_so_that_it_goes_and_is_made_anew() -> None:
    async def life() -> None:
        server = Server()
        server.job["spec"]["model"] = {"factory": "train:build"}
        server.job["spec"]["template"] = {"spec": {"containers": [{"name": "trainer", "command": ["python", "t.py"]}]}}
        server.job["status"] = {"trace": {"name": "tiny-trace-1", "number": 1, "created": True}}
        labels = {"memtune.dev/run": "tiny-trace-1", "memtune.dev/run-kind": "trace", "memtune.dev/index": "0"}
        older = pod("a")
        older["metadata"] |= {"name": "tiny-trace-1-0", "labels": labels, "annotations": {"memtune.dev/plan-hash": "1"}}
        async with Life(server) as shell:
            await seen(shell)
            server.coming.put_nowait(older)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            found = (await seen(shell)).observed.runs
            await looked_at(server, shell)
        assert list(found) == [""]
        assert "tiny-trace-1-0" in server.deleted
        assert server.job["status"]["trace"]["number"] == 2

    asyncio.run(life())


def test_a_clock_that_goes_back_keeps_no_old_answer() -> None:
    """Otherwise each answer would be valid until the clock catches up: for an hour a lost node would go unnoticed."""

    async def life() -> None:
        server = Server()
        server.template_refusals = [refused(f"template {number}") for number in range(2)]
        server.refusals = [refused(f"run {number}") for number in range(2)]
        async with Life(server) as shell:
            snapshot = await seen(shell)
            await shell.create(snapshot, [PROBE], NOW)
            known = server.node_lists, server.dry_runs, server.posts
            snapshot = await seen(shell, NOW - 3600)
            await shell.create(snapshot, [PROBE], NOW - 3600)
        assert (server.node_lists, server.dry_runs, server.posts) == tuple(count + 1 for count in known)

    asyncio.run(life())


# Objects that another version of the CRD accepted.
OLD_SPECS: dict[str, Any] = {
    "no-spec": None,
    "empty": {},
    "text": "train",
    "no-training": {"model": manifest()["spec"]["model"]},
    "another-field": {**manifest()["spec"], "batchSize": 4},
    "another-type": {**manifest()["spec"], "training": [4, 128]},
}
OLD_STATUSES: dict[str, Any] = {
    "none": None,
    "list": [],
    "text": "Running",
    "other-words": {"phase": "Tuning", "trials": [{"plan": 1}], "conditions": [{"type": "Ready", "status": "True"}]},
    "less-of-a-run": {"phase": "Probing", "fixed": ["a"], "probes": [{"name": "tiny-probe-1", "number": 1}]},
    "other-types": {"probes": {"1": {}}, "attempts": "none", "plan": ["bf16"], "prediction": 7, "oomRetries": "2"},
}
OLD_PODS: list[dict[str, Any]] = [
    {"labels": {}},
    {"labels": {"memtune.dev/run": "tiny-probe-1"}},
    {"labels": {"memtune.dev/run": "trial-1", "memtune.dev/index": "one"}, "annotations": None},
]


async def looked_at(server: Server, shell: KubernetesBackend, now: float = NOW) -> dict[str, Any]:
    await reconcile(shell, KEY, most_promising, lambda: now)
    status: dict[str, Any] = server.job["status"]
    return status


@pytest.mark.parametrize("spec", OLD_SPECS.values(), ids=OLD_SPECS)
def test_a_spec_of_an_older_shape_is_reported_and_can_be_corrected(spec: Any) -> None:
    async def life() -> None:
        server = Server()
        server.job |= {"spec": spec}
        async with Life(server) as shell:
            told = await looked_at(server, shell)
            assert [(each["type"], each["reason"]) for each in told["conditions"]] == [("Stalled", "SpecInvalid")]
            assert server.runs == []
            server.job |= {"spec": manifest()["spec"]}
            assert (await looked_at(server, shell))["phase"] == "Probing"
            assert "tiny-probe-1" in server.runs

    asyncio.run(life())


def test_a_missing_right_to_watch_pods_is_reported() -> None:
    """The role lacks a verb: nothing can be decided, and the job's status should say so."""

    async def life() -> None:
        server = Server()
        server.watch_refusal = refused("pods is forbidden: cannot list resource")
        async with Life(server) as shell:
            told = await looked_at(server, shell)
        said = "the operator may not watch Pod: pods is forbidden: cannot list resource"
        assert [(each["reason"], each["message"]) for each in told["conditions"]] == [("Refused", said)]
        assert server.runs == []

    asyncio.run(life())


def test_a_missing_right_to_list_nodes_is_reported_with_its_remedy() -> None:
    """Roles may be written by hand, and a chart's value forgotten."""

    async def life() -> None:
        server = Server()
        server.nodes_refusal = refused("nodes is forbidden: cannot list resource")
        async with Life(server) as shell:
            with pytest.raises(ApiError):
                await looked_at(server, shell)
            (told,) = (await looked_at(server, shell, NOW + 20))["conditions"]
            assert (told["type"], told["reason"]) == ("Stalled", "Refused")
            assert told["message"].startswith("the operator may not list nodes: nodes is forbidden: cannot list")
            assert "rbac.readNodes" in told["message"]
            assert server.runs == []
            server.nodes_refusal = None
            assert (await looked_at(server, shell, NOW + 80))["phase"] == "Probing"

    asyncio.run(life())


def test_a_webhook_that_does_not_answer_is_said_of_the_run_that_meets_it_and_not_of_the_template() -> None:
    async def life() -> None:
        server = Server()
        sentence = 'Internal error occurred: failed calling webhook "w": connection refused'
        server.template_refusals = [refused(sentence)]
        async with Life(server) as shell:
            snapshot = await seen(shell)
            assert snapshot.observed.blockers == ()
            server.refusals = [refused(sentence)]
            assert await shell.create(snapshot, [PROBE], NOW)
            assert (await seen(shell)).observed.runs["tiny-probe-1"].rejection == sentence

    asyncio.run(life())


def test_equal_events_of_an_object_are_counted_as_one() -> None:
    async def life() -> None:
        server, told = Server(), JobEvent("Warning", "SpecInvalid", "spec.training is missing")
        async with Life(server) as shell:
            snapshot = await seen(shell)
            await shell.tell(snapshot, [told])
            await shell.tell(snapshot, [told])
            server.job["metadata"]["resourceVersion"] = "2"
            await shell.tell(await seen(shell), [told])
        assert len(server.events) == 2

    asyncio.run(life())


@pytest.mark.parametrize("status", OLD_STATUSES.values(), ids=OLD_STATUSES)
def test_a_job_with_a_status_of_an_older_shape_begins_anew(status: Any) -> None:
    async def life() -> None:
        server = Server()
        server.job |= {"status": status}
        async with Life(server) as shell:
            told = await looked_at(server, shell)
            assert (told["phase"], [probe["number"] for probe in told["probes"]]) == ("Probing", [1])
            assert "trials" not in told

    asyncio.run(life())


@pytest.mark.parametrize("changed", OLD_PODS)
def test_pods_of_an_older_shape_are_ignored(changed: dict[str, Any]) -> None:
    async def life() -> None:
        server = Server()
        old = pod("a")
        old["metadata"] = {**old["metadata"], "name": "old", **changed}
        server.coming.put_nowait(old)
        async with Life(server) as shell:
            await asyncio.sleep(0.01)
            told = await looked_at(server, shell)
            assert told["phase"] == "Probing"
            assert "tiny-probe-1" in server.runs

    asyncio.run(life())


def measured(server: Server, outside_bytes: int) -> dict[str, Any]:
    """Return the pod of the first probe with its report."""
    plan = server.job["status"]["probes"][0]["plan"]
    peaks = {"peak_allocated_bytes": GIB, "peak_reserved_bytes": GIB, "non_torch_bytes": outside_bytes}
    memory = Memory(device_total_bytes=8 * GIB, **peaks)
    told = Report(Ending.SUCCEEDED, 0, run="tiny-probe-1", plan=plan, memory=memory, step_seconds=1.0)
    ended = {"exitCode": 0, "startedAt": "2023-11-14T22:13:20Z", "finishedAt": "2023-11-14T22:13:30Z"}
    state = {"terminated": {**ended, "message": json.dumps(told.to_json())}}
    return {**pod("a"), "status": {"phase": "Succeeded", "containerStatuses": [{"name": "trainer", "state": state}]}}


def test_a_job_begins_with_the_measurements_of_the_one_before() -> None:
    async def life() -> None:
        server = Server()
        server.job["spec"]["resources"]["gpuProduct"] = "NVIDIA-L4"
        async with Life(server) as shell:
            told = await looked_at(server, shell)
            assert "earlier job" not in told["conditions"][0]["message"]
            server.coming.put_nowait(measured(server, 700 * MIB))
            await asyncio.sleep(0.01)
            assert (await looked_at(server, shell))["probes"][0]["verdict"] == "succeeded"
            server.job = manifest(uid="another")
            server.job["spec"]["resources"]["gpuProduct"] = "NVIDIA-L4"
            told = await looked_at(server, shell)
            assert told["conditions"][0]["message"].endswith("; outside the allocator as 1 earlier job measured")
            (context,) = [part for part in told["prediction"]["components"] if part["name"] == "context"]
            assert context["expected"] == 700 * MIB

    asyncio.run(life())


def test_a_report_that_an_operator_left_unread_is_read_by_the_next_one() -> None:
    async def life() -> None:
        server = Server()
        async with Life(server) as shell:
            await looked_at(server, shell)
            server.coming.put_nowait(pod("a"))
            await asyncio.sleep(0.01)
            (probe,) = (await looked_at(server, shell))["probes"]
            assert "verdict" not in probe
        server.coming.put_nowait(measured(server, 700 * MIB))
        async with Life(server) as shell:
            await asyncio.sleep(0.01)
            told = await looked_at(server, shell, NOW + 12 * 3600)
        probe, following = told["probes"]
        assert (probe["verdict"], probe["endedAt"]) == ("succeeded", "2023-11-14T22:13:30Z")
        assert told["gpuSecondsSpent"] == 10
        assert following["plan"] != probe["plan"]
        assert server.runs == ["tiny-probe-1", "tiny-probe-2"]

    asyncio.run(life())


def refused(message: str, kind: ErrorKind = ErrorKind.REFUSED) -> ApiError:
    return ApiError(kind, message)


def test_a_refusal_that_is_worded_anew_each_time_is_not_asked_for_in_a_fast_loop() -> None:
    """A webhook's message may contain the number of the request."""

    async def life() -> None:
        server = Server()
        server.refusals = [refused(f"denied: request {number}") for number in range(5)]
        async with Life(server) as shell:
            snapshot = await seen(shell)
            assert await shell.create(snapshot, [PROBE], NOW)
            first = (await seen(shell)).observed.runs["tiny-probe-1"].rejection
            assert not await shell.create(snapshot, [PROBE], NOW + 0.1)
            assert (await seen(shell)).observed.runs["tiny-probe-1"].rejection == first == "denied: request 0"
            assert server.posts == 1
            assert await shell.create(snapshot, [PROBE], NOW + 30)
            assert (await seen(shell, NOW + 30)).observed.runs["tiny-probe-1"].rejection == "denied: request 1"

    asyncio.run(life())


def test_a_template_whose_refusal_is_worded_anew_each_time_is_asked_about_now_and_then() -> None:
    async def life() -> None:
        server = Server()
        server.template_refusals = [refused(f"denied: request {number}") for number in range(2)]
        async with Life(server) as shell:
            said = [(await seen(shell, NOW + later)).observed.blockers for later in (0, 0.1, 30, 60, 90)]
            assert [each.message for refusals in said for each in refusals] == [
                "denied: request 0",
                "denied: request 0",
                "denied: request 1",
            ]
            assert server.dry_runs == 3, "once it is taken it is not asked about again"
            server.job["metadata"]["generation"] += 1
            await seen(shell, NOW + 91)
            assert server.dry_runs == 4

    asyncio.run(life())


async def refused_once(server: Server, shell: KubernetesBackend) -> Snapshot:
    """Refuse a probe once for quota, and accept it a moment later."""
    server.refusals = [refused("exceeded quota: gpus")]
    snapshot = await seen(shell)
    await shell.create(snapshot, [PROBE], NOW)
    server.refusals = []
    return snapshot


def test_a_refusal_goes_once_the_run_is_taken() -> None:
    async def life() -> None:
        server = Server()
        async with Life(server) as shell:
            snapshot = await refused_once(server, shell)
            assert not await shell.create(snapshot, [PROBE], NOW + 30)
            assert (await seen(shell, NOW + 30)).observed.runs == {}

    asyncio.run(life())


def test_an_earlier_refusal_does_not_delay_a_later_run() -> None:
    """Nothing blocks the later run, so nobody would look again."""

    async def life() -> None:
        server = Server()
        async with Life(server) as shell:
            snapshot = await refused_once(server, shell)
            assert not await shell.create(snapshot, [replace(PROBE, number=2)], NOW + 5)
        assert server.runs == ["tiny-probe-1", "tiny-probe-2"]

    asyncio.run(life())


def test_refusals_of_an_earlier_job_of_the_same_name_do_not_count() -> None:
    async def life() -> None:
        server = Server()
        server.refusals = [refused("exceeded quota: gpus")]
        async with Life(server) as shell:
            await shell.create(await seen(shell), [PROBE], NOW)
            server.job = manifest(uid="another")
            assert (await seen(shell)).observed.runs == {}

    asyncio.run(life())


@pytest.mark.parametrize("freed", [93, -3600], ids=["later", "after the clock went back"])
def test_a_taken_name_is_reported_until_it_is_free(freed: int) -> None:
    """Otherwise it would be reported, cleared and reported again every half minute."""

    async def life() -> None:
        server = Server()
        server.refusals = [refused("already exists", ErrorKind.EXISTS)]
        server.taken = {"metadata": {"name": "tiny-probe-1", "uid": "foreign"}}
        async with Life(server) as shell:
            await shell.create(await seen(shell), [PROBE], NOW)
            for later in (1, 31, 62):
                (said,) = (await seen(shell, NOW + later)).observed.blockers
                assert said.reason == reasons.NAME_TAKEN
            server.taken = None
            after = (await seen(shell, NOW + freed)).observed
            assert (after.blockers, after.runs) == ((), {})

    asyncio.run(life())


def test_jobs_that_look_at_the_same_moment_share_one_list_of_the_nodes() -> None:
    async def life() -> None:
        server = Server()
        async with Life(server) as shell:
            await asyncio.gather(*(seen(shell) for _ in range(20)))
        assert server.node_lists == 1

    asyncio.run(life())


def test_a_kind_that_the_cluster_does_not_know_is_reported() -> None:
    """Without its group the scheduler would hold the pods back, and nobody would know why."""

    async def life() -> None:
        server = Server()
        trainer = {"name": "trainer", "image": "mine:1", "command": ["train"]}
        server.job["spec"]["template"] = {"spec": {"schedulerName": "volcano", "containers": [trainer]}}
        server.refusals = [refused("the server could not find the requested resource", ErrorKind.ABSENT)]
        async with Life(server, Gang.VOLCANO) as shell:
            assert await shell.create(await seen(shell), [PROBE], NOW)
            told = (await seen(shell)).observed.runs["tiny-probe-1"].rejection
            assert told == "the cluster does not know PodGroup of scheduling.volcano.sh/v1beta1; install it there"

    asyncio.run(life())


def test_the_price_of_a_product_reaches_the_status_of_its_job() -> None:
    async def life() -> None:
        server = Server()
        server.job["spec"]["resources"]["gpuProduct"] = "NVIDIA-L4"
        async with Life(server, prices={"NVIDIA-L4": 0.5}) as shell:
            status = await looked_at(server, shell)
        assert status["gpuHourPrice"] == 0.5
        assert status["prediction"]["costPerMillionTokens"] > 0

    asyncio.run(life())


def test_a_missing_gang_scheduler_refuses_the_job() -> None:
    async def life() -> None:
        server = Server()
        server.job["spec"]["launcher"] = "JobSet"
        async with Life(server) as shell:
            (said,) = (await seen(shell)).observed.blockers
            assert said.reason == reasons.GANG_NOT_INSTALLED

    asyncio.run(life())
