"""Leader election with a Lease: a replica writes only while no other one can hold the Lease."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any

from kubernetes.aio import client
from kubernetes.aio.leaderelection.electionconfig import Config
from kubernetes.aio.leaderelection.leaderelection import LeaderElection
from kubernetes.aio.leaderelection.leaderelectionrecord import LeaderElectionRecord
from kubernetes.aio.leaderelection.resourcelock.leaselock import LeaseLock

from memtune_operator.kubernetes.client import NO_ANSWER, Client
from memtune_operator.settings import Settings

_log = logging.getLogger("memtune")

# Failover within 30 s: a leader that cannot renew stops before another replica may take over.
# The Lease and the client only accept whole numbers.
LEASE_SECONDS = 15
RENEW_SECONDS = 10.0
RETRY_SECONDS = 2.0
_REQUEST_SECONDS = 3.0


class _TimeoutTolerantLock(LeaseLock):
    """The Lease lock. A timeout counts as a failed attempt: it neither ends the process nor extends the hold.

    ``taken`` is set once another replica holds the Lease: a leader that was frozen must not try to renew it.
    """

    def __init__(self, cluster: Client, settings: Settings) -> None:
        super().__init__(settings.lease_name, settings.lease_namespace, settings.identity, cluster.api)
        self.is_ours = False
        self.taken = asyncio.Event()
        self._ends_at = 0.0

    def is_held(self) -> bool:
        """Whether no other replica can have taken it yet, by the monotonic clock (the library uses the wall clock)."""
        return time.monotonic() < self._ends_at

    async def get(self, name: str, namespace: str) -> tuple[bool, Any]:
        """Return whether the Lease exists, and its record or the error."""
        try:
            is_there, found = await asyncio.wait_for(super().get(name, namespace), _REQUEST_SECONDS)
        except NO_ANSWER as error:
            return False, client.ApiException(reason=str(error) or type(error).__name__)
        if self.is_ours and isinstance(found, LeaderElectionRecord) and found.holder_identity != self.identity:
            self.taken.set()
        return is_there, found

    async def create(self, name: str, namespace: str, election_record: LeaderElectionRecord) -> bool:
        """Return whether it was created."""
        return await self._held_after(self._create(name, namespace, election_record))

    async def _create(self, name: str, namespace: str, record: LeaderElectionRecord) -> bool:
        # The library's own method passes an option that its generated client rejects.
        lease = client.V1Lease(metadata=client.V1ObjectMeta(name=name), spec=self.update_lease(record))
        try:
            await self.api_instance.create_namespaced_lease(namespace, lease)
        except client.ApiException as error:
            _log.warning("the lease %s/%s could not be created: %s", namespace, name, error.reason)
            return False
        return True

    async def update(self, name: str, namespace: str, updated_record: LeaderElectionRecord) -> bool:
        """Return whether it was written."""
        return await self._held_after(super().update(name, namespace, updated_record))

    async def _held_after(self, request: Coroutine[Any, Any, bool]) -> bool:
        """Return whether the request succeeded in time. Other replicas count from when they read the Lease, never
        before it was sent."""
        sent_at = time.monotonic()
        try:
            is_written = await asyncio.wait_for(request, _REQUEST_SECONDS)
        except NO_ANSWER:
            return False
        if is_written:
            self._ends_at = sent_at + LEASE_SECONDS
        return is_written


async def lead(cluster: Client, settings: Settings, work: Callable[[], Coroutine[Any, Any, None]]) -> bool:
    """Wait for the Lease and run ``work`` under it, until it ends (True) or the Lease is lost (False). The caller must
    then end the process at once."""
    lock = _TimeoutTolerantLock(cluster, settings)
    cluster.may_write = lock.is_held
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def led() -> None:
        lock.is_ours = True
        try:
            await work()
        except Exception as error:  # raised again below, once the Lease is no longer renewed
            ended.set_exception(error)
        else:
            ended.set_result(None)

    async def lost() -> None:
        return None

    election_config = Config(lock, LEASE_SECONDS, RENEW_SECONDS, RETRY_SECONDS, led, lost)
    election = asyncio.ensure_future(LeaderElection(election_config).run())
    taken: asyncio.Future[Any] = asyncio.ensure_future(lock.taken.wait())
    await asyncio.wait({election, ended, taken}, return_when=asyncio.FIRST_COMPLETED)
    if not ended.done():
        if election.done():
            election.result()
        return False
    taken.cancel()
    while not election.done():
        # Once may not be enough: asyncio.wait_for swallows a cancellation when its awaitable finishes at that moment.
        election.cancel()
        await asyncio.wait({election}, timeout=RETRY_SECONDS)
    ended.result()
    return True
