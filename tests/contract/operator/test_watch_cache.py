"""The watch cache: nothing is absent before its namespace was listed, and no watch becomes a busy loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

import pytest
from fake_api_server import ApiServer, api_server, events, listed
from kubernetes.aio import client

from memtune_operator.api_errors import ApiError, ErrorKind
from memtune_operator.backend import Key
from memtune_operator.kubernetes.client import Change, Client
from memtune_operator.kubernetes.watch_cache import Cache, NotWatchedError
from memtune_operator.pods import names
from memtune_operator.pods.kinds import POD, VOLCANO_GROUP


def pod(namespace: str, job: str, name: str) -> dict[str, Any]:
    owner = {"kind": "MemoryTunedJob", "name": job, "uid": "u", "controller": True}
    return {"metadata": {"namespace": namespace, "name": name, "ownerReferences": [owner]}}


class Server:
    """Lists its objects by namespace as permitted, then stays silent or ends the watch."""

    def __init__(self, *pods: dict[str, Any], ends_with: Exception | None = None, is_silent: bool = True) -> None:
        self.pods = list(pods)
        self.answers = {namespace: asyncio.Event() for namespace in ("", "a", "b")}
        self.lists = 0
        self.ends_with = ends_with
        self._is_silent = is_silent

    async def changes(
        self, api_version: str, kind: str, namespace: str, selector: str, since: str
    ) -> AsyncIterator[Change]:
        await self.answers[namespace].wait()
        self.lists += 1
        if isinstance(self.ends_with, ApiError) and self.ends_with.kind in (ErrorKind.ABSENT, ErrorKind.REFUSED):
            raise self.ends_with
        for each in self.pods:
            if namespace in ("", each["metadata"]["namespace"]):
                yield Change(each)
        yield Change(None)
        if self.ends_with:
            raise self.ends_with
        if self._is_silent:
            await asyncio.Event().wait()


def following(cache: Cache, server: Server) -> asyncio.Task[None]:
    return asyncio.create_task(cache.follow(cast("Client", server), lambda _: None))


async def turns() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


async def followed(server: ApiServer, asks: int) -> list[str]:
    """Return the known pods after a real client has asked this often."""
    cache = Cache(POD, ())
    async with client.ApiClient(client.Configuration(host=server.address)) as api:
        task = asyncio.create_task(cache.follow(Client(api), lambda _: None))
        while len(server.asked) < asks:
            await asyncio.sleep(0.01)
        found = await cache.of_job(Key("research", "llama"))
        task.cancel()
    return [each["metadata"]["name"] for each in found]


def test_a_namespace_that_was_not_listed_yet_is_waited_for() -> None:
    """A pod that only seems to be gone would count as lost, and its run would start again."""

    async def life() -> None:
        server, cache = Server(pod("b", "llama", "p")), Cache(POD, ("a", "b"))
        task = following(cache, server)
        server.answers["a"].set()
        assert await cache.of_job(Key("a", "llama")) == []
        asking = asyncio.create_task(cache.of_job(Key("b", "llama")))
        await turns()
        assert not asking.done()
        server.answers["b"].set()
        assert await asking == server.pods
        task.cancel()

    asyncio.run(life())


def test_one_watch_of_the_whole_cluster_serves_every_namespace() -> None:
    async def life() -> None:
        server, cache = Server(pod("b", "llama", "p")), Cache(POD, ())
        task = following(cache, server)
        server.answers[""].set()
        assert await cache.of_job(Key("b", "llama")) == server.pods
        task.cancel()

    asyncio.run(life())


def test_an_unknown_kind_has_no_objects() -> None:
    """Otherwise every job would wait for a list that never comes."""

    async def life() -> None:
        cache = Cache(VOLCANO_GROUP, ())
        server = Server(ends_with=ApiError(ErrorKind.ABSENT, "the server could not find the requested resource"))
        task = following(cache, server)
        server.answers[""].set()
        assert await cache.of_job(Key("b", "llama")) == []
        task.cancel()

    asyncio.run(life())


def test_a_job_that_may_not_be_watched_is_reported_and_woken_once_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it would wait silently, or be decided on from an outdated view."""
    monkeypatch.setattr("memtune_operator.kubernetes.watch_cache._UNCHANGED_SECONDS", 0.0)
    monkeypatch.setattr("memtune_operator.kubernetes.watch_cache._RETRY_SECONDS", 0.0)
    key, woken = Key("b", "llama"), asyncio.Queue[Key]()
    forbidden = ApiError(ErrorKind.REFUSED, "pods is forbidden: cannot list resource")

    async def life() -> None:
        server, cache = Server(pod("b", "llama", "p"), is_silent=False), Cache(POD, ("a", "b"))
        task = asyncio.create_task(cache.follow(cast("Client", server), woken.put_nowait))
        server.answers["b"].set()
        assert await asyncio.wait_for(woken.get(), 10) == key
        server.ends_with = forbidden
        while not woken.empty():
            woken.get_nowait()
        assert await asyncio.wait_for(woken.get(), 10) == key, "what was seen of it counts no more"
        with pytest.raises(NotWatchedError, match="may not watch Pod: pods is forbidden"):
            await cache.of_job(key)
        server.pods, server.ends_with = [], None
        assert await asyncio.wait_for(woken.get(), 10) == key
        assert await cache.of_job(key) == []
        task.cancel()

    asyncio.run(life())


def test_only_watched_deletions_count_as_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows what a pod missing from a list did after the last watch had ended."""
    monkeypatch.setattr("memtune_operator.kubernetes.watch_cache._RETRY_SECONDS", 0.0)
    pods = "/api/v1/pods"
    missing, going, anew = (placed(f"p-{number}", index) for index, number in enumerate((7, 8, 9)))

    async def known(server: ApiServer) -> set[tuple[str, int]]:
        cache, key = Cache(POD, ()), Key("research", "llama")
        async with client.ApiClient(client.Configuration(host=server.address)) as api:
            task = asyncio.create_task(cache.follow(Client(api), lambda _: None))
            while len(server.asked) < 5:
                await asyncio.sleep(0.01)
            found = cache.seen_going(key)
            task.cancel()
            cache.forget(key)
        assert cache.seen_going(key) == {}
        return set(found)

    with api_server() as server:
        server.answer(pods, listed(missing, going, anew), listed(anew))
        told = events(("DELETED", going), ("DELETED", anew), ("ADDED", anew), ("ERROR", {"code": 410}))
        server.answer(f"{pods}?watch", told, events())
        assert asyncio.run(known(server)) == {("llama-probe-1", 1)}


@pytest.mark.parametrize("line", ["[]", "3", '{"type": "ADDED"}', '{"type": "ADDED", "object": []}', "<html>"])
def test_a_watch_that_sends_invalid_events_is_restarted(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy in between may send anything, which would crash the operator."""
    monkeypatch.setattr("memtune_operator.kubernetes.watch_cache._RETRY_SECONDS", 0.0)
    pods, mine = "/api/v1/pods", versioned(pod("research", "llama", "p-9"), "9")

    with api_server() as server:
        server.answer(pods, listed())
        server.answer(f"{pods}?watch", (200, f"{line}\n"), events(("ADDED", mine)), events())
        assert asyncio.run(followed(server, asks=4)) == ["p-9"]


@pytest.mark.parametrize("ending", [None, ApiError(ErrorKind.EXPIRED, "too old resource version")])
def test_a_watch_that_ends_at_once_is_not_begun_again_at_once(ending: ApiError | None) -> None:
    async def life() -> int:
        server, cache = Server(ends_with=ending, is_silent=False), Cache(POD, ())
        task = following(cache, server)
        server.answers[""].set()
        await turns()
        task.cancel()
        return server.lists

    assert asyncio.run(life()) == 1


def test_a_watch_that_ended_is_gone_on_with_and_only_a_forgotten_one_is_listed_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A list of pods costs the API server all pods of the cluster, whatever the selector is."""
    monkeypatch.setattr("memtune_operator.kubernetes.watch_cache._RETRY_SECONDS", 0.0)
    old, new = (versioned(pod("research", "llama", name), name[-1]) for name in ("p-7", "p-9"))
    pods = "/api/v1/pods"

    with api_server() as server:
        server.answer(pods, listed(old), listed(new))
        server.answer(
            f"{pods}?watch",
            events(("MODIFIED", old), ("BOOKMARK", versioned({"metadata": {}}, "8"))),
            events(),
            events(("ERROR", {"code": 410, "reason": "Expired"})),
            events(),
        )
        assert asyncio.run(followed(server, asks=6)) == ["p-9"]
        versions = [parse_qs(urlsplit(each).query).get("resourceVersion", ["list"])[0] for each in server.asked[:6]]
        assert versions == ["list", "7", "8", "8", "list", "7"]


def versioned(manifest: dict[str, Any], version: str) -> dict[str, Any]:
    return {**manifest, "metadata": {**manifest["metadata"], "resourceVersion": version}}


def placed(name: str, index: int) -> dict[str, Any]:
    """Return a pod labelled with its run and index."""
    manifest = versioned(pod("research", "llama", name), name[-1])
    manifest["metadata"]["labels"] = {names.LABEL_RUN: "llama-probe-1", names.LABEL_INDEX: str(index)}
    return manifest
