"""The reconcile loop: observe, decide, write the status, act; the same for every backend.

No state is kept between reconciliations. One may be interrupted between any two actions; the next one, in this process
or another, continues from what is written.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from memtune.api import reasons
from memtune.api.status import dump_status
from memtune.controller import Decision, JobEvent, decide, refuse
from memtune.planning.next_probe import Search
from memtune_operator.api_errors import ApiError, ErrorKind
from memtune_operator.backend import Backend, Key, Snapshot

_log = logging.getLogger("memtune")
_FIRST_DELAY_SECONDS = 1.0
_LONGEST_DELAY_SECONDS = 60.0
# Far above the usual time: a reconciliation that hangs is cancelled and retried.
_LONGEST_TURN_SECONDS = 300.0


class Watcher(Protocol):
    """Observer of reconciliations: the metrics."""

    def reconciled(self, before: Snapshot, after: Snapshot, seconds: float) -> None:
        """A reconciliation ended; ``before`` is the state at its start, or at the start of the first failed one before
        it."""

    def failed(self, key: Key) -> None:
        """A reconciliation failed."""

    def gone(self, key: Key) -> None:
        """The job is gone."""


async def reconcile(
    backend: Backend,
    key: Key,
    search: Search,
    now: Callable[[], float],
    found: Callable[[Snapshot], object] = lambda _: None,
) -> tuple[Snapshot | None, float | None]:
    """Repeat until nothing changes; return the last snapshot and the seconds until the next timer.

    ``found`` is called with every snapshot before it is acted on.
    """
    written: dict[str, Any] = {}
    while True:
        snapshot = await backend.observe(key, now())
        if snapshot is None:
            return None, None
        found(snapshot)
        # Replaying a trace under many plans takes seconds, during which the Lease must be renewed.
        decision = await asyncio.to_thread(_decide, snapshot, search, now())
        status = dump_status(decision.status)
        is_news = status != snapshot.status
        if is_news:
            try:
                await backend.write(snapshot, status)
            except ApiError as error:
                if error.kind is ErrorKind.CONFLICT:
                    continue  # the object changed since: the decision is outdated
                if error.kind is ErrorKind.REFUSED and snapshot.job is None and not snapshot.is_unreadable:
                    # An invalid object that another CRD version accepted takes no status, so its author only sees
                    # events. That is not an operator error and must not trigger its alerts.
                    await backend.tell(snapshot, decision.events)
                    _log.warning("%s/%s: %s", key.namespace, key.name, error.message)
                    return snapshot, _LONGEST_DELAY_SECONDS
                if error.kind is ErrorKind.REFUSED:
                    # The job is valid, so the CRD has another version or permissions are missing: an operator error.
                    # The event shows the job's author why nothing happens.
                    why = f"The job stands still: the API server refuses its status: {error.message}"
                    await backend.tell(snapshot, [JobEvent("Warning", reasons.STATUS_REFUSED, why)])
                raise
        is_changed = await _act(backend, snapshot, decision, now())
        # An older CRD prunes the status, so comparing with what was written would find a change every time.
        if not is_changed and (not is_news or status == written):
            return snapshot, decision.wake_after_seconds
        written = status


def _decide(snapshot: Snapshot, search: Search, now: float) -> Decision:
    if snapshot.job is None:
        assert snapshot.problem is not None
        return refuse(snapshot.observed, snapshot.generation, snapshot.problem, now)
    return decide(snapshot.job, snapshot.observed, now, search)


async def _act(backend: Backend, snapshot: Snapshot, decision: Decision, now: float) -> bool:
    """Carry out a decision; return whether a refusal or a cached result requires another one."""
    await backend.tell(snapshot, decision.events)
    await backend.delete(snapshot, decision.delete)
    is_traced = await backend.remember_trace(snapshot, decision.trace, now) if decision.trace else False
    overhead = decision.measured_overhead
    is_measured = await backend.remember_overhead(snapshot, overhead) if overhead else False
    is_probed = await backend.remember_probes(snapshot, decision.probes, now) if decision.probes else False
    is_refused = await backend.create(snapshot, decision.create, now) if decision.create else False
    if decision.delete_job:
        await backend.delete_job(snapshot)
    return is_refused or is_traced or is_measured or is_probed


class Reconciler:
    """Runs one task per job, which sleeps until an event for the job or its timer."""

    def __init__(self, backend: Backend, search: Search, now: Callable[[], float], watcher: Watcher) -> None:
        self._backend = backend
        self._search = search
        self._now = now
        self._watcher = watcher
        self._changed: dict[Key, asyncio.Event] = {}
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        # The snapshot of each job at the start of the current reconciliation, or of the first failed one before it.
        self._found: dict[Key, Snapshot] = {}
        self._is_stopping = False

    @property
    def pending(self) -> int:
        """The number of jobs waiting to be reconciled. The metrics thread calls it while jobs come and go."""
        return sum(changed.is_set() for changed in list(self._changed.values()))

    def wake(self, key: Key) -> None:
        """Reconcile a job because it or one of its objects changed."""
        if key not in self._tasks:
            self._changed[key] = asyncio.Event()
            self._tasks[key] = asyncio.create_task(self._follow(key), name=f"{key.namespace}/{key.name}")
        self._changed[key].set()

    async def stop(self) -> None:
        """Cancel every task. Interrupting a reconciliation is safe."""
        # Once may not be enough: asyncio.wait_for swallows a cancellation when its awaitable finishes at that moment.
        self._is_stopping = True
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _follow(self, key: Key) -> None:
        changed, failures = self._changed[key], 0
        wait: float | None = None
        try:
            while not self._is_stopping:
                await _any(changed, wait)
                changed.clear()
                wait, failures, is_gone = await self._turn(key, failures)
                # A job of the same name may have been created in the meantime.
                if is_gone and not changed.is_set():
                    return
        finally:
            self._watcher.gone(key)
            self._found.pop(key, None)
            del self._tasks[key], self._changed[key]

    async def _turn(self, key: Key, failures: int) -> tuple[float | None, int, bool]:
        """Reconcile once; return the seconds to wait, the failures in a row, and whether the job is gone."""
        began = self._now()
        try:
            turn = reconcile(self._backend, key, self._search, self._now, partial(self._found.setdefault, key))
            snapshot, wait = await asyncio.wait_for(turn, _LONGEST_TURN_SECONDS)
        except ApiError as error:
            self._watcher.failed(key)
            _log.warning("%s/%s: %s", key.namespace, key.name, error.message)
            return max(error.retry_after_seconds, _delay_seconds(failures)), failures + 1, False
        except Exception:  # one job's error must not stop the others
            self._watcher.failed(key)
            _log.exception("%s/%s: this should not happen; the job is reconciled again", key.namespace, key.name)
            return _delay_seconds(failures), failures + 1, False
        if snapshot is None:
            return None, 0, True
        if snapshot.is_unreadable:
            # An operator error, so count it for the alerts and retry: its fix will not change the job.
            self._watcher.failed(key)
            return _LONGEST_DELAY_SECONDS, 0, False
        self._watcher.reconciled(self._found.pop(key), snapshot, self._now() - began)
        return wait, 0, False


def _delay_seconds(failures: int) -> float:
    return min(_FIRST_DELAY_SECONDS * 2.0**failures, _LONGEST_DELAY_SECONDS)


async def _any(changed: asyncio.Event, seconds: float | None) -> None:
    """Wait for an event, at most ``seconds``."""
    try:
        await asyncio.wait_for(changed.wait(), seconds)
    except asyncio.TimeoutError:  # not the built-in one before Python 3.11
        return
