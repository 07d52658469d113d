"""Watch caches: the objects that jobs own, one watch per kind, relisted only when a watch cannot resume."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence

from memtune.api import KIND
from memtune_operator.api_errors import ApiError, ErrorKind
from memtune_operator.backend import Key
from memtune_operator.kubernetes.client import Change, Client
from memtune_operator.pods import names
from memtune_operator.pods.kinds import Manifest, ObjectKind
from memtune_operator.pods.pod_reader import Gone, gone, index_of, run_of

_log = logging.getLogger("memtune")
_RETRY_SECONDS = 2.0
# CRDs and roles may be added while the operator runs, so it retries.
_UNCHANGED_SECONDS = 30.0
_THROUGH = names.ANNOTATION_JOB
# A run name and the index of a pod in that run.
Place = tuple[str, int]


class NotWatchedError(ApiError):
    """The operator may not watch a kind, so nothing can be decided."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorKind.REFUSED, message)


class Cache:
    """The objects of one kind in the watched namespaces; an empty name means all namespaces."""

    def __init__(self, kind: ObjectKind, namespaces: Sequence[str]) -> None:
        self._kind = kind
        self._by_job: dict[Key, dict[str, Manifest]] = {}
        # Pods whose deletion was observed, by their place in a run.
        self._seen_going: dict[Key, dict[Place, Gone]] = {}
        # The resourceVersion up to which each namespace is known; empty where it has to be listed.
        self._versions: dict[str, str] = {}
        # Set once a namespace has been listed or listing was forbidden.
        self._is_answered = {namespace: asyncio.Event() for namespace in namespaces or ("",)}
        self._doubted: set[str] = set()
        self._refused: dict[str, str] = {}
        self._turned_away: set[Key] = set()

    async def of_job(self, key: Key) -> list[Manifest]:
        """Return the objects that claim this job as their owner. Waits for the first list of the namespace; a caller
        that was refused the list is woken once it is permitted."""
        namespace = key.namespace if key.namespace in self._is_answered else ""
        await self._is_answered[namespace].wait()
        if namespace in self._refused:
            self._turned_away.add(key)
            raise NotWatchedError(f"the operator may not watch {self._kind}: {self._refused[namespace]}")
        return list(self._by_job.get(key, {}).values())

    def seen_going(self, key: Key) -> dict[Place, Gone]:
        """The pods of the job whose deletion was observed, by their place in a run."""
        return dict(self._seen_going.get(key, {}))

    def forget(self, key: Key) -> None:
        """Drop the records of a deleted job."""
        self._seen_going.pop(key, None)

    def nodes_by_job(self) -> dict[Key, set[str]]:
        """The nodes of each job's scheduled pods."""
        return {
            key: {node for each in owned.values() if (node := (each.get("spec") or {}).get("nodeName"))}
            for key, owned in self._by_job.items()
        }

    async def follow(self, cluster: Client, wake: Callable[[Key], None]) -> None:
        """Watch until cancelled."""
        await asyncio.gather(*(self._follow(cluster, namespace, wake) for namespace in self._is_answered))

    async def _follow(self, cluster: Client, namespace: str, wake: Callable[[Key], None]) -> None:
        while True:
            wait = _RETRY_SECONDS
            try:
                await self._follow_once(cluster, namespace, wake)
            except ApiError as error:
                wait = max(error.retry_after_seconds, wait)
                if error.kind in (ErrorKind.ABSENT, ErrorKind.EXPIRED, ErrorKind.REFUSED):
                    self._versions[namespace] = ""
                if error.kind is ErrorKind.ABSENT:
                    # The CRD is not installed (yet), so there are no objects of it.
                    self._drop_others(namespace, set(), wake)
                    self._answered(namespace, wake)
                    wait = max(_UNCHANGED_SECONDS, wait)
                if error.kind is ErrorKind.REFUSED and self._refuses(namespace, error.message, wake):
                    wait = max(_UNCHANGED_SECONDS, wait)
                if error.kind is not ErrorKind.EXPIRED:
                    _log.warning("watching %s in %s: %s", self._kind, namespace or "all namespaces", error.message)
            # Always wait: a server or proxy that closes every watch at once must not cause a busy loop.
            await asyncio.sleep(wait)

    async def _follow_once(self, cluster: Client, namespace: str, wake: Callable[[Key], None]) -> None:
        """Run one watch from where the last one ended. If that version has expired, list first; objects that were
        deleted in between are found by their absence from the list."""
        since = self._versions.get(namespace, "")
        listed: set[tuple[Key, str]] | None = None if since else set()
        async for change in cluster.changes(*self._kind, namespace, names.LABEL_JOB, since=since):
            self._versions[namespace] = change.version
            if change.manifest is None:
                if listed is not None:
                    self._drop_others(namespace, listed, wake)
                    listed = None
                    self._answered(namespace, wake)
                continue
            for key in _keys(change.manifest):
                self._put(key, change.manifest, change.is_gone)
                self._note(key, change)
                if listed is not None:
                    listed.add((key, change.manifest["metadata"]["name"]))
                wake(key)

    def _note(self, key: Key, change: Change) -> None:
        """Record observed deletions. A new object of the same name and place clears the record."""
        assert change.manifest is not None
        if (index := index_of(change.manifest)) is None:
            return
        place, places = (run_of(change.manifest), index), self._seen_going.setdefault(key, {})
        if change.is_gone:
            places[place] = gone(change.manifest, time.time())
        else:
            places.pop(place, None)

    def _refuses(self, namespace: str, why: str, wake: Callable[[Key], None]) -> bool:
        """Whether the role lacks a verb. A starting API server may answer so once, so the first time does not count."""
        if namespace not in self._doubted:
            self._doubted.add(namespace)
            return False
        is_new = namespace not in self._refused
        self._refused[namespace] = why
        self._is_answered[namespace].set()
        if is_new:
            # The cached objects may be gone by now, and no watch will report it.
            for key in [key for key in self._by_job if namespace in ("", key.namespace)]:
                wake(key)
        return True

    def _answered(self, namespace: str, wake: Callable[[Key], None]) -> None:
        """Mark the namespace as listed."""
        self._doubted.discard(namespace)
        self._is_answered[namespace].set()
        if self._refused.pop(namespace, None) is None:
            return
        waiting = {key for key in self._turned_away if namespace in ("", key.namespace)}
        self._turned_away -= waiting
        for key in waiting:
            wake(key)

    def _put(self, key: Key, manifest: Manifest, is_gone: bool) -> None:
        owned = self._by_job.setdefault(key, {})
        if is_gone:
            owned.pop(manifest["metadata"]["name"], None)
        else:
            # managedFields are a third of a pod and unused here.
            manifest["metadata"].pop("managedFields", None)
            owned[manifest["metadata"]["name"]] = manifest
        if not owned:
            del self._by_job[key]

    def _drop_others(self, namespace: str, listed: set[tuple[Key, str]], wake: Callable[[Key], None]) -> None:
        kept = [(key, name) for key, owned in self._by_job.items() for name in owned]
        for key, name in kept:
            if (not namespace or key.namespace == namespace) and (key, name) not in listed:
                self._put(key, self._by_job[key][name], is_gone=True)
                wake(key)


def _keys(manifest: Manifest) -> Iterator[Key]:
    """The jobs that the object names as its controller, also through a JobSet. Callers check the uid."""
    metadata = manifest["metadata"]
    for owner in metadata.get("ownerReferences") or []:
        if owner.get("controller"):
            name = owner["name"] if owner.get("kind") == KIND else (metadata.get("annotations") or {}).get(_THROUGH)
            if name:
                yield Key(metadata["namespace"], name)
