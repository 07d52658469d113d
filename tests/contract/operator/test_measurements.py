"""Jobs' measurements on the API server: read and written as permitted, never overwriting another job's."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, cast

import pytest
from small_jobs import make_job

from memtune.api import reasons
from memtune.controller import Blocker, Observed
from memtune.memory.measured_overhead import JobOverhead, MeasuredOverhead
from memtune_operator.api_errors import ApiError, ErrorKind
from memtune_operator.backend import Snapshot
from memtune_operator.kubernetes.client import Client
from memtune_operator.kubernetes.measurements_cache import MeasurementsCache

ONE, TWO = JobOverhead(5, "one", 2**29), JobOverhead(6, "two", 2**30)


class Server:
    """The ConfigMap of each namespace, its refusals, and what is read before another writer."""

    def __init__(self) -> None:
        self.kept: dict[str, dict[str, Any]] = {}
        self.refusals: dict[str, ErrorKind] = {}
        self.asked: list[str] = []
        self.outdated: list[dict[str, Any] | None] = []

    async def read(self, api_version: str, kind: str, namespace: str, name: str) -> dict[str, Any]:
        assert (api_version, kind, name) == ("v1", "ConfigMap", "memtune-measurements")
        self._ask("read")
        found = self.outdated.pop() if self.outdated else self.kept.get(namespace)
        if found is None:
            raise ApiError(ErrorKind.ABSENT, "not found")
        return found

    async def create(self, manifest: dict[str, Any]) -> None:
        self._ask("create")
        namespace = manifest["metadata"]["namespace"]
        if namespace in self.kept:
            raise ApiError(ErrorKind.EXISTS, "it is there")
        self.kept[namespace] = {**manifest, "metadata": {**manifest["metadata"], "resourceVersion": "1"}}

    async def replace(self, manifest: dict[str, Any]) -> None:
        self._ask("replace")
        metadata = manifest["metadata"]
        version = self.kept[metadata["namespace"]]["metadata"]["resourceVersion"]
        if metadata["resourceVersion"] != version:
            raise ApiError(ErrorKind.CONFLICT, "somebody wrote since")
        new = {**metadata, "resourceVersion": str(int(version) + 1)}
        self.kept[metadata["namespace"]] = {**manifest, "metadata": new}

    def _ask(self, verb: str) -> None:
        self.asked.append(verb)
        if verb in self.refusals:
            raise ApiError(self.refusals[verb], "no")


def snapshot(namespace: str = "research", product: str = "NVIDIA-L4") -> Snapshot:
    resources = {"gpuMemory": "8Gi", **({"gpuProduct": product} if product else {})}
    job = make_job(resources=resources)
    job = job.model_copy(update={"metadata": job.metadata.model_copy(update={"namespace": namespace})})
    return Snapshot({"metadata": {}}, Observed(), job)


def recalled(server: Server, of: Snapshot) -> MeasuredOverhead | None:
    found = asyncio.run(MeasurementsCache(cast("Client", server), "runner:1").recall(of))
    assert replace(found, observed=of.observed) == of
    return found.observed.measured_overhead


def learned(server: Server, of: Snapshot, measured: JobOverhead) -> bool:
    return asyncio.run(MeasurementsCache(cast("Client", server), "runner:1").remember(of, measured))


def test_measurements_are_recalled_in_their_own_namespace_alone() -> None:
    server = Server()
    assert recalled(server, snapshot()) == MeasuredOverhead()
    assert learned(server, snapshot(), TWO)
    assert learned(server, snapshot(), ONE)
    assert recalled(server, snapshot()) == MeasuredOverhead((ONE, TWO))
    assert recalled(server, snapshot("another")) == MeasuredOverhead()


@pytest.mark.parametrize(
    "of",
    [
        snapshot(product=""),
        replace(snapshot(), job=None),
        replace(snapshot(), observed=Observed(blockers=(Blocker(reasons.TEMPLATE_REJECTED, "no"),))),
    ],
    ids=["no GPU", "no job", "no pod"],
)
def test_nothing_is_requested_for_a_job_without_comparable_measurements(of: Snapshot) -> None:
    server = Server()
    assert recalled(server, of) is None
    assert server.asked == []


def test_one_of_two_concurrent_writers_retries_and_nothing_is_lost() -> None:
    server = Server()
    learned(server, snapshot(), ONE)
    before = server.kept["research"]
    learned(server, snapshot(), TWO)
    server.outdated = [before]
    third = JobOverhead(7, "three", 2**29)
    assert learned(server, snapshot(), third)
    assert recalled(server, snapshot()) == MeasuredOverhead((ONE, TWO, third))


def test_a_concurrently_created_object_is_not_overwritten() -> None:
    server = Server()
    learned(server, snapshot(), ONE)
    server.outdated = [None]
    assert learned(server, snapshot(), TWO)
    assert recalled(server, snapshot()) == MeasuredOverhead((ONE, TWO))


def test_repeated_conflicts_repeat_the_reconciliation() -> None:
    server = Server()
    learned(server, snapshot(), ONE)
    server.outdated = [None] * 9
    assert learned(server, snapshot(), TWO)
    assert server.outdated


def test_a_server_that_fails_holds_up_no_job() -> None:
    server = Server()
    server.refusals["read"] = ErrorKind.RETRY
    assert recalled(server, snapshot()) is None


def test_without_the_right_to_write_the_job_goes_on() -> None:
    server = Server()
    server.refusals["create"] = ErrorKind.REFUSED
    assert recalled(server, snapshot()) == MeasuredOverhead()
    assert not learned(server, snapshot(), ONE)


def test_without_the_right_to_read_nothing_is_written_either() -> None:
    """Under an earlier chart's role it could be created but not read again, and would be rewritten endlessly."""
    server = Server()
    server.refusals["read"] = ErrorKind.REFUSED
    assert recalled(server, snapshot()) is None
    assert not learned(server, snapshot(), ONE)
    assert server.kept == {}
