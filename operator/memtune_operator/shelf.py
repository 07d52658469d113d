"""Where the API server keeps what a namespace remembers: one ConfigMap of a known name in each namespace."""

from __future__ import annotations

import logging
from collections.abc import Callable

from memtune_operator import kept
from memtune_operator.cluster import Cluster
from memtune_operator.refusals import Kind, RefusalError
from memtune_operator.wrapping import Manifest

_log = logging.getLogger("memtune")


class Shelf:
    """Reads and writes the ConfigMap of each namespace."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster = cluster
        self._name = name

    async def read(self, namespace: str) -> Manifest | None:
        """What is there; None where there is nothing, or nothing that may be read."""
        try:
            return await self._cluster.read(kept.API_VERSION, kept.KIND, namespace, self._name)
        except RefusalError as refusal:
            if refusal.kind not in (Kind.ABSENT, Kind.REFUSED):
                raise
            return None

    async def change(self, namespace: str, change: Callable[[Manifest | None], Manifest]) -> bool:
        """Write what is made of what is there, if nobody wrote in between; whether it is worth looking again."""
        try:
            before = await self.read(namespace)
            new = change(before)
            await (self._cluster.replace(new) if before else self._cluster.create(new))
        except RefusalError as refusal:
            if refusal.kind in (Kind.CONFLICT, Kind.EXISTS):
                return True
            _log.warning("%s/%s cannot be written: %s", namespace, self._name, refusal.message)
            return False
        return True
