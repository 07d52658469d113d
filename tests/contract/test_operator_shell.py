"""What a job of a cluster is told of its pods and nodes, and what is asked of the API server for it, and how often."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

from memtune.decide import reasons
from memtune.knobs import NO_CHECKPOINTING, Precision, Sharding
from memtune.plan import Plan
from memtune.run import Run, RunKind
from memtune_operator.cluster import Change, Cluster
from memtune_operator.cluster_shell import ClusterShell
from memtune_operator.gangs import Gang
from memtune_operator.policy import Policy
from memtune_operator.refusals import Kind, RefusalError
from memtune_operator.settings import Settings
from memtune_operator.shell import Key, Snapshot

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
    """One job, pods that come, the nodes, and what is refused: a sentence for each POST, the last one for ever."""

    def __init__(self) -> None:
        self.job = manifest()
        self.coming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.nodes = [ready("a")]
        self.taken: dict[str, Any] | None = None
        self.refusals: list[RefusalError] = []
        self.posts = 0
        self.node_lists = 0

    async def read(self, api_version: str, kind: str, namespace: str, name: str) -> dict[str, Any]:
        if kind == "MemoryTunedJob":
            return self.job
        if self.taken is None:
            raise RefusalError(Kind.ABSENT, "not found")
        return self.taken

    async def list(self, api_version: str, kind: str) -> Sequence[dict[str, Any]]:
        self.node_lists += 1
        await asyncio.sleep(0)
        return list(self.nodes)

    async def create(self, manifest: dict[str, Any], dry_run: bool = False) -> None:
        if dry_run:
            return
        self.posts += 1
        if self.refusals:
            raise self.refusals.pop(0) if len(self.refusals) > 1 else self.refusals[0]

    async def changes(self, api_version: str, kind: str, namespace: str, selector: str) -> AsyncIterator[Change]:
        yield Change(None)
        while kind == "Pod":
            yield Change(await self.coming.get())
        await asyncio.Event().wait()


class Life:
    """A shell that follows the server, for as long as a test takes."""

    def __init__(self, server: Server, *gangs: Gang) -> None:
        settings = Settings("runner:1", Policy(), identity="me", gangs=frozenset(gangs))
        self.shell = ClusterShell(cast("Cluster", server), settings)

    async def __aenter__(self) -> ClusterShell:
        self._task = asyncio.create_task(self.shell.follow(lambda _: None))
        return self.shell

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()


async def seen(shell: ClusterShell, now: float = NOW) -> Snapshot:
    snapshot = await shell.observe(KEY, now)
    assert snapshot is not None
    return snapshot


def test_a_pod_on_a_node_that_just_came_is_not_lost() -> None:
    """An autoscaler adds a node, and a pod is on it before the nodes are read again: its run must not start anew."""

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


def refused(message: str, kind: Kind = Kind.REFUSED) -> RefusalError:
    return RefusalError(kind, message)


def test_a_refusal_that_is_worded_anew_each_time_is_not_asked_for_in_a_fast_loop() -> None:
    """A webhook's sentence may hold the number of the request."""

    async def life() -> None:
        server = Server()
        server.refusals = [refused(f"denied: request {number}") for number in range(5)]
        async with Life(server) as shell:
            snapshot = await seen(shell)
            assert await shell.create(snapshot, [PROBE], NOW)
            first = (await seen(shell)).observed.runs["tiny-probe-1"].refusal
            assert not await shell.create(snapshot, [PROBE], NOW + 0.1)
            assert (await seen(shell)).observed.runs["tiny-probe-1"].refusal == first == "denied: request 0"
            assert server.posts == 1
            assert await shell.create(snapshot, [PROBE], NOW + 30)
            assert (await seen(shell, NOW + 30)).observed.runs["tiny-probe-1"].refusal == "denied: request 1"

    asyncio.run(life())


def test_a_refusal_goes_once_the_run_is_taken() -> None:
    async def life() -> None:
        server = Server()
        server.refusals = [refused("exceeded quota: gpus")]
        async with Life(server) as shell:
            snapshot = await seen(shell)
            await shell.create(snapshot, [PROBE], NOW)
            server.refusals = []
            assert not await shell.create(snapshot, [PROBE], NOW + 30)
            assert (await seen(shell, NOW + 30)).observed.runs == {}

    asyncio.run(life())


def test_what_a_job_of_the_same_name_was_refused_does_not_count() -> None:
    async def life() -> None:
        server = Server()
        server.refusals = [refused("exceeded quota: gpus")]
        async with Life(server) as shell:
            await shell.create(await seen(shell), [PROBE], NOW)
            server.job = manifest(uid="another")
            assert (await seen(shell)).observed.runs == {}

    asyncio.run(life())


def test_a_name_that_stays_taken_is_said_without_a_break_and_not_once_it_is_free() -> None:
    """Said, taken back and said again every half a minute, it would write and tell for ever."""

    async def life() -> None:
        server = Server()
        server.refusals = [refused("already exists", Kind.EXISTS)]
        server.taken = {"metadata": {"name": "tiny-probe-1", "uid": "foreign"}}
        async with Life(server) as shell:
            await shell.create(await seen(shell), [PROBE], NOW)
            for later in (1, 31, 62):
                (said,) = (await seen(shell, NOW + later)).observed.refusals
                assert said.reason == reasons.NAME_TAKEN
            server.taken = None
            after = (await seen(shell, NOW + 93)).observed
            assert (after.refusals, after.runs) == ((), {})

    asyncio.run(life())


def test_jobs_that_look_at_the_same_moment_share_one_list_of_the_nodes() -> None:
    async def life() -> None:
        server = Server()
        async with Life(server) as shell:
            await asyncio.gather(*(seen(shell) for _ in range(20)))
        assert server.node_lists == 1

    asyncio.run(life())


def test_a_kind_that_the_cluster_does_not_know_is_said() -> None:
    """Without its group the scheduler would hold the pods back, and nobody would know why."""

    async def life() -> None:
        server = Server()
        trainer = {"name": "trainer", "image": "mine:1", "command": ["train"]}
        server.job["spec"]["template"] = {"spec": {"schedulerName": "volcano", "containers": [trainer]}}
        server.refusals = [refused("the server could not find the requested resource", Kind.ABSENT)]
        async with Life(server, Gang.VOLCANO) as shell:
            assert await shell.create(await seen(shell), [PROBE], NOW)
            told = (await seen(shell)).observed.runs["tiny-probe-1"].refusal
            assert told == "the cluster does not know PodGroup of scheduling.volcano.sh/v1beta1; install it there"

    asyncio.run(life())


def test_what_the_operator_was_not_installed_with_forbids_every_pod() -> None:
    async def life() -> None:
        server = Server()
        server.job["spec"]["launcher"] = "JobSet"
        async with Life(server) as shell:
            (said,) = (await seen(shell)).observed.refusals
            assert said.reason == reasons.GANG_NOT_INSTALLED

    asyncio.run(life())
