"""Jobs' measurements on the API server: read and written as permitted, never overwriting another job's."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, cast

import pytest
from small_jobs import make_job

from memtune.api import reasons
from memtune.controller import Observed, Refusal
from memtune.memory.measured_overhead import JobOutside, Remembered
from memtune_operator.backend import Snapshot
from memtune_operator.kubernetes.api_errors import Kind, RefusalError
from memtune_operator.kubernetes.client import Client
from memtune_operator.kubernetes.measurement_store import Measurements

ONE, TWO = JobOutside(5, "one", 2**29), JobOutside(6, "two", 2**30)


class Server:
    """The ConfigMap of each namespace, its refusals, and what is read before another writer."""

    def __init__(self) -> None:
        self.kept: dict[str, dict[str, Any]] = {}
        self.refusals: dict[str, Kind] = {}
        self.asked: list[str] = []
        self.outdated: list[dict[str, Any] | None] = []

    async def read(self, api_version: str, kind: str, namespace: str, name: str) -> dict[str, Any]:
        assert (api_version, kind, name) == ("v1", "ConfigMap", "memtune-measurements")
        self._ask("read")
        found = self.outdated.pop() if self.outdated else self.kept.get(namespace)
        if found is None:
            raise RefusalError(Kind.ABSENT, "not found")
        return found

    async def create(self, manifest: dict[str, Any]) -> None:
        self._ask("create")
        namespace = manifest["metadata"]["namespace"]
        if namespace in self.kept:
            raise RefusalError(Kind.EXISTS, "it is there")
        self.kept[namespace] = {**manifest, "metadata": {**manifest["metadata"], "resourceVersion": "1"}}

    async def replace(self, manifest: dict[str, Any]) -> None:
        self._ask("replace")
        metadata = manifest["metadata"]
        version = self.kept[metadata["namespace"]]["metadata"]["resourceVersion"]
        if metadata["resourceVersion"] != version:
            raise RefusalError(Kind.CONFLICT, "somebody wrote since")
        new = {**metadata, "resourceVersion": str(int(version) + 1)}
        self.kept[metadata["namespace"]] = {**manifest, "metadata": new}

    def _ask(self, verb: str) -> None:
        self.asked.append(verb)
        if verb in self.refusals:
            raise RefusalError(self.refusals[verb], "no")


def snapshot(namespace: str = "research", product: str = "NVIDIA-L4") -> Snapshot:
    resources = {"gpuMemory": "8Gi", **({"gpuProduct": product} if product else {})}
    job = make_job(resources=resources)
    job = job.model_copy(update={"metadata": job.metadata.model_copy(update={"namespace": namespace})})
    return Snapshot({"metadata": {}}, Observed(), job)


def recalled(server: Server, of: Snapshot) -> Remembered | None:
    found = asyncio.run(Measurements(cast("Client", server), "runner:1").recall(of))
    assert replace(found, observed=of.observed) == of
    return found.observed.remembered


def learned(server: Server, of: Snapshot, measured: JobOutside) -> bool:
    return asyncio.run(Measurements(cast("Client", server), "runner:1").remember(of, measured))


def test_what_is_learned_is_recalled_in_its_own_namespace_alone() -> None:
    server = Server()
    assert recalled(server, snapshot()) == Remembered()
    assert learned(server, snapshot(), TWO)
    assert learned(server, snapshot(), ONE)
    assert recalled(server, snapshot()) == Remembered((ONE, TWO))
    assert recalled(server, snapshot("another")) == Remembered()


@pytest.mark.parametrize(
    "of",
    [
        snapshot(product=""),
        replace(snapshot(), job=None),
        replace(snapshot(), observed=Observed(refusals=(Refusal(reasons.TEMPLATE_REJECTED, "no"),))),
    ],
    ids=["no GPU", "no job", "no pod"],
)
def test_where_there_is_nothing_to_compare_with_nothing_is_asked(of: Snapshot) -> None:
    server = Server()
    assert recalled(server, of) is None
    assert server.asked == []


def test_of_two_that_write_at_once_one_writes_again_and_nothing_is_lost() -> None:
    server = Server()
    learned(server, snapshot(), ONE)
    before = server.kept["research"]
    learned(server, snapshot(), TWO)
    server.outdated = [before]
    third = JobOutside(7, "three", 2**29)
    assert learned(server, snapshot(), third)
    assert recalled(server, snapshot()) == Remembered((ONE, TWO, third))


def test_what_was_created_in_between_is_not_written_over() -> None:
    server = Server()
    learned(server, snapshot(), ONE)
    server.outdated = [None]
    assert learned(server, snapshot(), TWO)
    assert recalled(server, snapshot()) == Remembered((ONE, TWO))


def test_where_others_write_first_again_and_again_the_turn_is_done_anew() -> None:
    server = Server()
    learned(server, snapshot(), ONE)
    server.outdated = [None] * 9
    assert learned(server, snapshot(), TWO)
    assert server.outdated


def test_a_server_that_fails_holds_up_no_job() -> None:
    server = Server()
    server.refusals["read"] = Kind.RETRY
    assert recalled(server, snapshot()) is None


def test_without_the_right_to_write_the_job_goes_on() -> None:
    server = Server()
    server.refusals["create"] = Kind.REFUSED
    assert recalled(server, snapshot()) == Remembered()
    assert not learned(server, snapshot(), ONE)


def test_without_the_right_to_read_nothing_is_written_either() -> None:
    """Under an earlier chart's role it could be created but not read again, and would be rewritten endlessly."""
    server = Server()
    server.refusals["read"] = Kind.REFUSED
    assert recalled(server, snapshot()) is None
    assert not learned(server, snapshot(), ONE)
    assert server.kept == {}
