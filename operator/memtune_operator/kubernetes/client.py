"""A Kubernetes API client with what the operator needs.

Objects are plain dictionaries: models of the `kubernetes` package are slow to build and do not know our kinds.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, NamedTuple

import aiohttp
from kubernetes.aio import client, config

from memtune.api import KIND, PLURAL
from memtune_operator.api_errors import ApiError, ErrorKind, api_error
from memtune_operator.pods.kinds import Manifest

_REQUEST_SECONDS = 30.0
NO_ANSWER = (aiohttp.ClientError, asyncio.TimeoutError, OSError)
# The server ends a watch after a while; the read timeout beyond that detects a dead connection.
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
    """An object that was added, modified or deleted; no object means that everything up to ``version`` was
    delivered."""

    manifest: Manifest | None
    is_gone: bool = False
    version: str = ""


class Client:
    """Requests to the API server. Methods raise ApiError only."""

    def __init__(self, api: client.ApiClient, count_request: CountRequest = lambda *_: None) -> None:
        self.api = api
        self.may_write: Callable[[], bool] = lambda: True
        self._count_request = count_request

    async def read(self, api_version: str, kind: str, namespace: str, name: str) -> Manifest:
        """Read one object."""
        return await self._call("GET", f"{_path(api_version, kind, namespace)}/{name}")

    async def list(self, api_version: str, kind: str, namespace: str = "", selector: str = "") -> list[Manifest]:
        """List the objects of a kind, in one namespace if given, that match the label selector."""
        path, query = _path(api_version, kind, namespace), {"labelSelector": selector}
        items: list[Manifest] = (await self._call("GET", path, query if selector else {})).get("items") or []
        return items

    async def create(self, manifest: Manifest, dry_run: bool = False) -> None:
        """Create an object, or only validate it with ``dry_run``."""
        path = _path(manifest["apiVersion"], manifest["kind"], manifest["metadata"]["namespace"])
        await self._call("POST", path, {"dryRun": "All"} if dry_run else {}, manifest)

    async def replace(self, manifest: Manifest) -> None:
        """Replace an object, if its resourceVersion is still the one that was read."""
        metadata = manifest["metadata"]
        path = _path(manifest["apiVersion"], manifest["kind"], metadata["namespace"])
        await self._call("PUT", f"{path}/{metadata['name']}", {}, manifest)

    async def replace_status(self, job: Manifest, status: Manifest) -> None:
        """Replace the status, if the job's resourceVersion is still the one that was read."""
        metadata = job["metadata"]
        path = f"{_path(job['apiVersion'], KIND, metadata['namespace'])}/{metadata['name']}/status"
        await self._call("PUT", path, {}, {**job, "status": status})

    async def delete(self, manifest: Manifest, grace_seconds: int | None = None) -> None:
        """Delete the object with this uid; another object of the same name stays."""
        metadata = manifest["metadata"]
        path = f"{_path(manifest['apiVersion'], manifest['kind'], metadata['namespace'])}/{metadata['name']}"
        body: Manifest = {"preconditions": {"uid": metadata["uid"]}, "propagationPolicy": "Background"}
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = grace_seconds
        try:
            await self._call("DELETE", path, {}, body)
        except ApiError as error:
            # Gone, or replaced by another object of the same name.
            if error.kind not in (ErrorKind.ABSENT, ErrorKind.CONFLICT):
                raise

    async def pod_lines(
        self, namespace: str, pod: str, part: str, query: Mapping[str, str], seconds: float = _REQUEST_SECONDS
    ) -> AsyncIterator[str]:
        """Stream the lines of a pod subresource (``log``, ``proxy/...``). The pod name may carry a port."""
        path = f"{_path('v1', 'Pod', namespace)}/{pod}/{part}"
        with self._api_errors("GET"):
            async with self._stream("GET", path, query, seconds) as lines:
                async for line in lines:
                    yield line.rstrip(b"\n").decode(errors="replace")

    async def changes(
        self, api_version: str, kind: str, namespace: str, selector: str = "", fields: str = "", since: str = ""
    ) -> AsyncIterator[Change]:
        """Stream the existing objects and then changes to them, until the server ends the watch; with ``since``,
        changes only."""
        path, selectors = _path(api_version, kind, namespace), {"labelSelector": selector, "fieldSelector": fields}
        query = {name: value for name, value in selectors.items() if value}
        if not since:
            listed = await self._call("GET", path, query)
            for item in listed.get("items") or []:
                # The items of a list lack apiVersion and kind.
                yield Change({"apiVersion": api_version, "kind": kind, **item})
            since = listed["metadata"]["resourceVersion"]
            yield Change(None, version=since)
        query |= {"watch": "true", "resourceVersion": since, "timeoutSeconds": str(_WATCH_SECONDS)}
        # Bookmarks keep the version recent enough to resume from when nothing changes for long.
        query |= {"allowWatchBookmarks": "true"}
        with self._api_errors("WATCH"):
            async with self._stream("WATCH", path, query, _WATCH_SECONDS + _REQUEST_SECONDS) as lines:
                async for line in lines:
                    yield _change(line)

    @asynccontextmanager
    async def _stream(
        self, counted_as: str, path: str, query: Mapping[str, str], seconds: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """The lines of a streamed response. The connection is always closed afterwards."""
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
            # After a freeze, a process continues in the middle of a reconcile before it can read who leads now.
            raise ApiError(ErrorKind.RETRY, "the lease has run out: another operator may lead by now")
        with self._api_errors(verb):
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
    def _api_errors(self, verb: str) -> Iterator[None]:
        """Turn any error of a request into a ApiError, and count the request."""
        try:
            yield
        except client.ApiException as error:
            self._count_request(verb, error.status or 0)
            retry_after = (error.headers or {}).get("Retry-After", "")
            raise api_error(error.status, str(error.reason or ""), str(error.body or ""), retry_after) from error
        except (*NO_ANSWER, ValueError) as error:
            self._count_request(verb, 0)
            raise api_error(None, f"the API server did not answer: {error or type(error).__name__}", "") from error


def _change(line: bytes) -> Change:
    """Parse one line of a watch."""
    event = json.loads(line)
    try:
        kind, found = event["type"], event["object"]
        if kind == "ERROR":
            raise api_error(found.get("code"), "", json.dumps(found))
        version = found["metadata"].get("resourceVersion", "")
    except (KeyError, TypeError, AttributeError) as error:
        # A proxy may send anything.
        raise ValueError(f"the watch sent what is no event: {line[:200]!r}") from error
    return Change(None if kind == "BOOKMARK" else found, is_gone=kind == "DELETED", version=version)


def _path(api_version: str, kind: str, namespace: str) -> str:
    root = "/api/" if "/" not in api_version else "/apis/"
    scope = f"/namespaces/{namespace}" if namespace else ""
    return f"{root}{api_version}{scope}/{_PLURALS[kind]}"


@asynccontextmanager
async def connect(count_request: CountRequest) -> AsyncIterator[Client]:
    """Connect to the cluster that this pod runs in, or the one of the kubeconfig."""
    await config.load_config()
    async with client.ApiClient() as api:
        yield Client(api, count_request)


def is_fresh(at: float, now: float, seconds: float) -> bool:
    """Whether an answer from ``at`` is recent enough to reuse; not if the clock went back since."""
    return 0 <= now - at < seconds
