"""Leader election: the end of work ends the lead, a lost Lease ends the work, a silent API server is a failed try."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from datetime import datetime, timezone
from typing import Any, cast

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio import client

from memtune_operator.api_errors import ApiError
from memtune_operator.kubernetes import lease as module
from memtune_operator.kubernetes.client import Client
from memtune_operator.kubernetes.lease import lead
from memtune_operator.pods.security_policy import Policy
from memtune_operator.settings import Settings

SETTINGS = Settings("runner:1", Policy(), identity="me", lease_namespace="memtune")


def hasten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the shortest Lease that the library accepts."""
    for name, seconds in {"LEASE_SECONDS": 2, "RENEW_SECONDS": 1.5, "RETRY_SECONDS": 1.0}.items():
        monkeypatch.setattr(module, name, seconds)


class Leases:
    """The coordination API: one Lease, held by whoever the test says, or no answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.holder = "me"
        self.error: Exception | None = None
        self.tries = 0
        self.written: list[Any] = []
        monkeypatch.setattr(client, "CoordinationV1Api", lambda **_: self)
        hasten(monkeypatch)

    async def read_namespaced_lease(self, name: str, namespace: str) -> Any:
        self.tries += 1
        await asyncio.sleep(0)
        if self.error:
            raise self.error
        now = datetime.now(timezone.utc)
        spec = client.V1LeaseSpec(
            holder_identity=self.holder, lease_duration_seconds=1, acquire_time=now, renew_time=now
        )
        return client.V1Lease(metadata=client.V1ObjectMeta(name=name), spec=spec)

    async def replace_namespaced_lease(self, name: str, namespace: str, body: Any) -> None:
        if self.error:
            raise self.error
        self.written.append(body)


def led(work: Any) -> bool:
    async def life() -> bool:
        return await asyncio.wait_for(lead(cast("Client", _Connected()), SETTINGS, work), 60)

    return asyncio.run(life())


class _Connected:
    api = None


@pytest.fixture
def leases(monkeypatch: pytest.MonkeyPatch) -> Leases:
    return Leases(monkeypatch)


@pytest.mark.usefixtures("leases")
def test_when_the_work_ends_the_lease_is_not_held_any_longer() -> None:
    async def work() -> None:
        return None

    assert led(work)


@pytest.mark.usefixtures("leases")
def test_work_that_breaks_down_ends_the_process_instead_of_holding_the_lease() -> None:
    async def work() -> None:
        raise ZeroDivisionError("a mistake of ours")

    with pytest.raises(ZeroDivisionError):
        led(work)


def test_a_lost_lease_ends_the_work(leases: Leases) -> None:
    async def work() -> None:
        leases.error = aiohttp.ClientConnectionError("connection refused")
        await asyncio.Event().wait()

    assert not led(work)


def test_a_replica_that_sees_another_leader_gives_up_at_once(leases: Leases, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in {"LEASE_SECONDS": 7200, "RENEW_SECONDS": 3600.0}.items():
        monkeypatch.setattr(module, name, seconds)

    async def work() -> None:
        leases.holder = "another"
        await asyncio.Event().wait()

    assert not led(work)


def test_an_api_server_that_cannot_be_reached_is_asked_again(leases: Leases) -> None:
    leases.error = aiohttp.ClientConnectionError("connection refused")

    async def come_back() -> None:
        while leases.tries < 3:
            await asyncio.sleep(0)
        leases.error = None

    async def work() -> None:
        return None

    async def life() -> bool:
        back = asyncio.create_task(come_back())
        is_over = await asyncio.wait_for(lead(cast("Client", _Connected()), SETTINGS, work), 60)
        await back
        return is_over

    assert asyncio.run(life())


class Api:
    """An API server with one Lease that records requests."""

    def __init__(self) -> None:
        self.created: list[dict[str, Any]] = []

    async def answer(self, request: web.Request) -> web.Response:
        if request.method == "POST":
            self.created.append(await request.json())
            return web.json_response(self.created[-1], status=201)
        if not self.created:
            return web.json_response({"code": 404, "reason": "NotFound"}, status=404)
        return web.json_response(self.created[0])

    def lead(self, work: Callable[[Client], Coroutine[Any, Any, None]]) -> bool:
        """Lead with the real client and return how the work ended."""

        async def life() -> bool:
            app = web.Application()
            app.router.add_route("*", "/{path:.*}", self.answer)
            async with TestServer(app) as server:
                cluster = Client(client.ApiClient(client.Configuration(str(server.make_url("")))))
                async with cluster.api:
                    return await asyncio.wait_for(lead(cluster, SETTINGS, lambda: work(cluster)), 60)

        return asyncio.run(life())


def test_the_first_lease_is_created_through_the_real_client() -> None:
    api = Api()

    async def work(_: Client) -> None:
        return None

    assert api.lead(work)
    assert [lease["spec"]["holderIdentity"] for lease in api.created] == ["me"]


def test_a_replica_paused_beyond_its_lease_writes_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between planning a run and creating its pods, another may take the lead and finish the run."""
    api = Api()
    hasten(monkeypatch)
    pods = [{"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "a", "name": name}} for name in "pq"]

    async def work(cluster: Client) -> None:
        await cluster.create(pods[0])
        time.sleep(2.2)  # the whole process stops, as after SIGSTOP
        with pytest.raises(ApiError, match="the lease has run out"):
            await cluster.create(pods[1])

    assert api.lead(work)
    assert api.created[1:] == pods[:1]


def test_the_lease_is_written_with_the_time_that_the_operator_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = module.LEASE_SECONDS
    leases = Leases(monkeypatch)
    monkeypatch.setattr(module, "LEASE_SECONDS", seconds)

    async def work() -> None:
        return None

    assert led(work)
    assert leases.written[0].spec.lease_duration_seconds == seconds
