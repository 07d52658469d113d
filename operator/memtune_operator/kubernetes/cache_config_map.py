"""The cache ConfigMap of each namespace, read and written through the API server."""

from __future__ import annotations

import logging
from collections.abc import Callable

from memtune_operator.kubernetes import cache_entries
from memtune_operator.kubernetes.api_errors import Kind, RefusalError
from memtune_operator.kubernetes.client import Client
from memtune_operator.pods.wrapping import Manifest

# Jobs that end together write to the same ConfigMap.
_MOST_ATTEMPTS = 4
_log = logging.getLogger("memtune")


class CacheConfigMap:
    """Reads and writes the ConfigMap of each namespace."""

    def __init__(self, cluster: Client, name: str) -> None:
        self._cluster = cluster
        self._name = name

    async def read(self, namespace: str) -> Manifest | None:
        """Return the ConfigMap, empty if it does not exist; None if reading is forbidden."""
        try:
            return await self._cluster.read(cache_entries.API_VERSION, cache_entries.KIND, namespace, self._name)
        except RefusalError as refusal:
            if refusal.kind is Kind.ABSENT:
                return {}
            if refusal.kind is Kind.REFUSED:
                return None
            raise

    async def change(self, namespace: str, change: Callable[[Manifest], Manifest]) -> bool:
        """Apply ``change`` to the ConfigMap with optimistic locking; return whether to observe the job again."""
        for _ in range(_MOST_ATTEMPTS):
            try:
                await self._change(namespace, change)
            except RefusalError as refusal:
                if refusal.kind in (Kind.CONFLICT, Kind.EXISTS):
                    continue
                _log.warning("%s/%s cannot be written: %s", namespace, self._name, refusal.message)
                return False
            break
        return True

    async def _change(self, namespace: str, change: Callable[[Manifest], Manifest]) -> None:
        before = await self.read(namespace)
        if before is None:
            # The entry could not be read back, so it would be written again and again.
            raise RefusalError(Kind.REFUSED, "it may not be read")
        new = change(before)
        await (self._cluster.replace(new) if before else self._cluster.create(new))
