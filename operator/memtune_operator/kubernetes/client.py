"""The Kubernetes API, as far as the operator uses it. Objects are plain values, as the API server writes them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, NamedTuple

import aiohttp
from kubernetes.aio import client, config

from memtune.api import KIND, PLURAL
from memtune_operator.kubernetes.refusals import Kind, RefusalError, refusal_of
from memtune_operator.pods.wrapping import Manifest

_REQUEST_SECONDS = 30.0
NO_ANSWER = (aiohttp.ClientError, asyncio.TimeoutError, OSError)
# The server ends a watch now and then; a dead connection is noticed at the latest when it should have.
_WATCH_SECONDS = 300
_PLURALS = {
    "Pod": "pods",
    "Service": "services",
    "ConfigMap": "configmaps",
    "Event": "events",
    "Node": "nodes",
    "Namespace": "namespaces",
    KIND: PLURAL,
    "PodGroup": "podgroups",
    "JobSet": "jobsets",
    "Job": "jobs",
}

CountRequest = Callable[[str, int], None]


class Change(NamedTuple):
    """An object that came, changed or went; no object at all means that everything up to ``version`` has been told."""

    manifest: Manifest | None
    is_gone: bool = False
    version: str = ""


class Client:
    """The API server. Every method raises RefusalError and nothing else."""

    def __init__(self, api: client.ApiClient, count_request: CountRequest = lambda *_: None) -> None:
        self.api = api
        self.may_write: Callable[[], bool] = lambda: True
        self._count_request = count_request

    async def read(self, api_version: str, kind: str, namespace: str, name: str) -> Manifest:
        """One object."""
        return await self._call("GET", f"{_path(api_version, kind, namespace)}/{name}")

    async def list(self, api_version: str, kind: str, namespace: str = "", selector: str = "") -> list[Manifest]:
        """The objects of a kind, of a namespace if one is given, that bear these labels."""
        path, query = _path(api_version, kind, namespace), {"labelSelector": selector}
        items: list[Manifest] = (await self._call("GET", path, query if selector else {})).get("items") or []
        return items

    async def create(self, manifest: Manifest, dry_run: bool = False) -> None:
        """Create an object; with ``dry_run`` only ask whether it would be taken."""
        path = _path(manifest["apiVersion"], manifest["kind"], manifest["metadata"]["namespace"])
        await self._call("POST", path, {"dryRun": "All"} if dry_run else {}, manifest)

    async def replace(self, manifest: Manifest) -> None:
        """Write an object, if it is still at the version that was read."""
        metadata = manifest["metadata"]
        path = _path(manifest["apiVersion"], manifest["kind"], metadata["namespace"])
        await self._call("PUT", f"{path}/{metadata['name']}", {}, manifest)

    async def replace_status(self, job: Manifest, status: Manifest) -> None:
        """Write the status, if the job is still at the version that was read."""
        metadata = job["metadata"]
        path = f"{_path(job['apiVersion'], KIND, metadata['namespace'])}/{metadata['name']}/status"
        await self._call("PUT", path, {}, {**job, "status": status})

    async def delete(self, manifest: Manifest, grace_seconds: int | None = None) -> None:
        """Delete exactly this object: another one of the same name stays."""
        metadata = manifest["metadata"]
        path = f"{_path(manifest['apiVersion'], manifest['kind'], metadata['namespace'])}/{metadata['name']}"
        body: Manifest = {"preconditions": {"uid": metadata["uid"]}, "propagationPolicy": "Background"}
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = grace_seconds
        try:
            await self._call("DELETE", path, {}, body)
        except RefusalError as refusal:
            # Gone, or another object bears the name by now: either way ours is not there any more.
            if refusal.kind not in (Kind.ABSENT, Kind.CONFLICT):
                raise

    async def pod_lines(
        self, namespace: str, pod: str, part: str, query: Mapping[str, str], seconds: float = _REQUEST_SECONDS
    ) -> AsyncIterator[str]:
        """What a pod says at one of its subresources (``log``, ``proxy/...``), line by line as it comes. A pod's name
        may have a port behind it."""
        path = f"{_path('v1', 'Pod', namespace)}/{pod}/{part}"
        with self._refusals("GET"):
            async with self._stream("GET", path, query, seconds) as lines:
                async for line in lines:
                    yield line.rstrip(b"\n").decode(errors="replace")

    async def changes(
        self, api_version: str, kind: str, namespace: str, selector: str = "", fields: str = "", since: str = ""
    ) -> AsyncIterator[Change]:
        """What is there, and then what happens to it, until the server ends the watch; only what happened ``since``."""
        path, selectors = _path(api_version, kind, namespace), {"labelSelector": selector, "fieldSelector": fields}
        query = {name: value for name, value in selectors.items() if value}
        if not since:
            listed = await self._call("GET", path, query)
            for item in listed.get("items") or []:
                # A list leaves out of its items what it says of itself.
                yield Change({"apiVersion": api_version, "kind": kind, **item})
            since = listed["metadata"]["resourceVersion"]
            yield Change(None, version=since)
        query |= {"watch": "true", "resourceVersion": since, "timeoutSeconds": str(_WATCH_SECONDS)}
        # Where nothing happens for long, bookmarks keep the version young enough to go on from.
        query |= {"allowWatchBookmarks": "true"}
        with self._refusals("WATCH"):
            async with self._stream("WATCH", path, query, _WATCH_SECONDS + _REQUEST_SECONDS) as lines:
                async for line in lines:
                    yield _change(line)

    @asynccontextmanager
    async def _stream(
        self, counted_as: str, path: str, query: Mapping[str, str], seconds: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """The lines of an answer that comes bit by bit. However that ends, the connection is not kept."""
        response = await self._request("GET", path, query, None, seconds)
        self._count_request(counted_as, response.status)
        try:
            yield response.response.content
        finally:
            response.response.close()

    async def _call(
        self, verb: str, path: str, query: Mapping[str, str] | None = None, body: Manifest | None = None
    ) -> Manifest:
        if verb != "GET" and not self.may_write():
            # Whoever stood still goes on in the middle of a turn, before it can read who leads by now.
            raise RefusalError(Kind.RETRY, "the lease has run out: another operator may lead by now")
        with self._refusals(verb):
            response = await self._request(verb, path, query or {}, body, _REQUEST_SECONDS)
            self._count_request(verb, response.status)
            answer = json.loads(await response.read())
            if not isinstance(answer, dict):
                raise ValueError("it sent what is no object")
            return answer

    async def _request(
        self, verb: str, path: str, query: Mapping[str, str], body: Manifest | None, seconds: float
    ) -> Any:
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        parameters = {"query_params": list(query.items()), "header_params": headers, "auth_settings": ["BearerToken"]}
        request = await self.api.param_serialize(verb, path, **parameters, body=body)
        response = await self.api.call_api(*request, _request_timeout=seconds)
        if not 200 <= response.status <= 299:
            await response.read()
            raise client.ApiException(http_resp=response)
        return response

    @contextmanager
    def _refusals(self, verb: str) -> Iterator[None]:
        """Turns whatever a request may raise into a RefusalError, and counts it."""
        try:
            yield
        except client.ApiException as error:
            self._count_request(verb, error.status or 0)
            retry_after = (error.headers or {}).get("Retry-After", "")
            raise refusal_of(error.status, str(error.reason or ""), str(error.body or ""), retry_after) from error
        except (*NO_ANSWER, ValueError) as error:
            self._count_request(verb, 0)
            raise refusal_of(None, f"the API server did not answer: {error or type(error).__name__}", "") from error


def _change(line: bytes) -> Change:
    """One line of a watch."""
    event = json.loads(line)
    try:
        kind, told = event["type"], event["object"]
        if kind == "ERROR":
            raise refusal_of(told.get("code"), "", json.dumps(told))
        version = told["metadata"].get("resourceVersion", "")
    except (KeyError, TypeError, AttributeError) as error:
        # A proxy in between may send anything.
        raise ValueError(f"the watch sent what is no event: {line[:200]!r}") from error
    return Change(None if kind == "BOOKMARK" else told, is_gone=kind == "DELETED", version=version)


def _path(api_version: str, kind: str, namespace: str) -> str:
    root = "/api/" if "/" not in api_version else "/apis/"
    scope = f"/namespaces/{namespace}" if namespace else ""
    return f"{root}{api_version}{scope}/{_PLURALS[kind]}"


@asynccontextmanager
async def connect(count_request: CountRequest) -> AsyncIterator[Client]:
    """The cluster that this pod runs in, or that the kubeconfig names."""
    await config.load_config()
    async with client.ApiClient() as api:
        yield Client(api, count_request)
