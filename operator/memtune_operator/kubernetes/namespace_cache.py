"""The ConfigMap of each namespace, read and written through the API server."""

from __future__ import annotations

import logging
from collections.abc import Callable

from memtune_operator.api_errors import ApiError, ErrorKind
from memtune_operator.bounded_config_map import API_VERSION, KIND
from memtune_operator.kubernetes.client import Client
from memtune_operator.pods.kinds import Manifest

# Jobs that end together write to the same ConfigMap.
_MOST_ATTEMPTS = 4
_log = logging.getLogger("memtune")


class NamespaceCache:
    """Reads and writes the ConfigMap of each namespace."""

    def __init__(self, cluster: Client, name: str) -> None:
        self._cluster = cluster
        self._name = name

    async def read(self, namespace: str) -> Manifest | None:
        """Return the ConfigMap, empty if it does not exist; None if reading is forbidden."""
        try:
            return await self._cluster.read(API_VERSION, KIND, namespace, self._name)
        except ApiError as error:
            if error.kind is ErrorKind.ABSENT:
                return {}
            if error.kind is ErrorKind.REFUSED:
                return None
            raise

    async def change(self, namespace: str, change: Callable[[Manifest], Manifest]) -> bool:
        """Apply ``change`` to the ConfigMap with optimistic locking; return whether to observe the job again."""
        for _ in range(_MOST_ATTEMPTS):
            try:
                await self._change(namespace, change)
            except ApiError as error:
                if error.kind in (ErrorKind.CONFLICT, ErrorKind.EXISTS):
                    continue
                _log.warning("%s/%s cannot be written: %s", namespace, self._name, error.message)
                return False
            break
        return True

    async def _change(self, namespace: str, change: Callable[[Manifest], Manifest]) -> None:
        before = await self.read(namespace)
        if before is None:
            # The entry could not be read back, so it would be written again and again.
            raise ApiError(ErrorKind.REFUSED, "it may not be read")
        new = change(before)
        await (self._cluster.replace(new) if before else self._cluster.create(new))
