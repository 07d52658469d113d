"""The node list: one for all jobs, refreshed every few seconds, and a poll that wakes jobs on lost nodes."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Collection, Mapping

from memtune_operator.api_errors import ApiError, ErrorKind
from memtune_operator.backend import Key
from memtune_operator.kubernetes.client import Client, is_fresh
from memtune_operator.kubernetes.watch_cache import NotWatchedError
from memtune_operator.pods.kinds import Manifest
from memtune_operator.pods.lost_nodes import healthy_nodes

_log = logging.getLogger("memtune")
_AGE_SECONDS = 15.0


class NodeList:
    """Lists nodes, if the operator may read them."""

    def __init__(self, cluster: Client, may_read: bool) -> None:
        self._cluster = cluster
        self._may_read = may_read
        self._nodes: list[Manifest] = []
        self._at = -math.inf
        self._refused_at: float | None = None
        self._lock = asyncio.Lock()

    async def known(self, now: float, places: Collection[str] = ()) -> list[Manifest] | None:
        """Return all nodes, at most a few seconds old, and in any case those in ``places``: a new node must not look
        lost. None without permission to read nodes."""
        if not self._may_read:
            return None
        async with self._lock:  # one list serves all jobs that ask at the same moment
            known = {node["metadata"]["name"] for node in self._nodes}
            if not is_fresh(self._at, now, _AGE_SECONDS) or not known.issuperset(places):
                self._nodes = await self._listed(now)
                self._at = now
            return self._nodes

    async def _listed(self, now: float) -> list[Manifest]:
        try:
            found = await self._cluster.list("v1", "Node")
        except ApiError as error:
            if error.kind is not ErrorKind.REFUSED:
                raise
            self._refused_at = now if self._refused_at is None else self._refused_at
            # A starting API server may answer so for a moment.
            if is_fresh(self._refused_at, now, _AGE_SECONDS):
                raise
            advice = "grant it, or install with rbac.readNodes: false"
            raise NotWatchedError(f"the operator may not list nodes: {error.message}; {advice}") from error
        self._refused_at = None
        return found

    async def look_after(self, nodes_by_job: Callable[[], Mapping[Key, set[str]]], wake: Callable[[Key], None]) -> None:
        """Poll for lost nodes: they do not change their pods, so no watch reports them."""
        while self._may_read:
            await asyncio.sleep(_AGE_SECONDS)
            try:
                sound = healthy_nodes(await self.known(time.time()) or [])
            except ApiError as error:
                _log.warning("reading nodes: %s", error.message)
                continue
            for key, nodes in nodes_by_job().items():
                if nodes - sound:
                    wake(key)
