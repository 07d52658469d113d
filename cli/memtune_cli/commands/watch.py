"""`memtune watch NAME`: follows a job on a cluster until it ends; without a terminal, prints changes as lines."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import AsyncIterator
from typing import NamedTuple

from memtune.api import API_VERSION, KIND
from memtune.api.status import RunStatus
from memtune.units import over
from memtune.wire.names import pod_name
from memtune.wire.run import RunKind
from memtune_cli.input import cluster
from memtune_cli.input.cluster import JobAddress
from memtune_cli.input.job_view import JobView, job_view_of
from memtune_cli.input.run_pods import is_by_job_set, pods_of
from memtune_cli.views.display import Display
from memtune_cli.views.job_page import page
from memtune_cli.views.live_page import live_page, speed
from memtune_cli.views.ranks import Ranks, Reading, readings
from memtune_cli.views.status_diff import status_changes
from memtune_operator.api_errors import ApiError, ErrorKind
from memtune_operator.pods.pod_reader import run_of
from memtune_operator.pods.wrapped_container import METRICS_PORT

_RECONNECT_SECONDS = 2.0
_REDRAW_SECONDS = 1.0
# Reading a pod's metrics goes through the API server, so keep the load low.
_LOOK_SECONDS, _LOOK_SECONDS_PER_POD = 2.0, 0.1
_METRICS_SECONDS = 5.0
# More than the ranks of a pod have; a user's pod may return anything.
_MOST_LINES = 20_000
_TOLD_EVERY_SECONDS = 30.0


def run(arguments: argparse.Namespace) -> int:
    """Watch until the job ends; return 0 if it succeeded, 1 if it failed or was deleted, 130 if interrupted."""
    return asyncio.run(_watch(arguments))


async def _watch(arguments: argparse.Namespace) -> int:
    async with cluster.address(arguments) as job:
        manifest = await job.read()
        watch = _Watch(job, Display())
        watch.learn(job_view_of(manifest))
        return await watch.to_its_end()


class _Made(NamedTuple):
    """The pods that a run's JobSet created."""

    run: str
    names: list[str]


class _Watch:
    """The watch of one job."""

    def __init__(self, job: JobAddress, display: Display) -> None:
        self._job = job
        self._display = display
        self._view: JobView | None = None
        self._ranks: Ranks | None = None
        self._trouble = ""
        self._told_at = 0.0
        self._made = _Made("", [])

    async def to_its_end(self) -> int:
        """Follow the job and its ranks until it ends."""
        following = asyncio.ensure_future(self._follow())
        others = [asyncio.ensure_future(task) for task in (self._look(), self._redraw())]
        try:
            await asyncio.wait({following, *others}, return_when=asyncio.FIRST_COMPLETED)
            for other in others:
                if other.done():
                    other.result()  # either ends only with an error
            return await following
        finally:
            for task in (following, *others):
                task.cancel()
            await asyncio.gather(following, *others, return_exceptions=True)

    def learn(self, view: JobView) -> None:
        """Show the new state of the job."""
        for line in status_changes(self._view, view):
            self._display.tell(line)
        self._view = view
        self._show()

    async def _follow(self) -> int:
        while True:
            try:
                code = await self._follow_once()
                if code is not None:
                    return code
            except ApiError as error:
                if error.kind not in (ErrorKind.RETRY, ErrorKind.EXPIRED):
                    raise
                if error.kind is ErrorKind.RETRY:
                    self._report_trouble(f"{cluster.sentence(error, self._job.server)}; trying again")
            # Always wait: a server or proxy that closes every watch at once must not cause a busy loop.
            await asyncio.sleep(_RECONNECT_SECONDS)

    async def _follow_once(self) -> int | None:
        """Run one list and watch until the server ends it; return the exit code once the job is over."""
        is_there = False
        fields = f"metadata.name={self._job.name}"
        async for change in self._job.cluster.changes(API_VERSION, KIND, self._job.namespace, fields=fields):
            self._report_trouble("")
            is_there = is_there or change.manifest is not None
            if change.is_gone or not is_there:
                self._display.end([f"{self._job.name} was deleted"])
                return 1
            if change.manifest is None:
                continue
            view = job_view_of(change.manifest)
            self.learn(view)
            if view.is_over:
                self._end(view)
                return 0 if view.status.phase == "Succeeded" else 1
        return None

    def _report_trouble(self, trouble: str) -> None:
        if trouble != self._trouble and not self._display.is_live:
            self._display.tell(trouble or "the API server answers again")
        self._trouble = trouble

    async def _look(self) -> None:
        """Poll the metrics of the current run's pods."""
        while True:
            found = self._view.live_run if self._view else None
            pods: list[str] = []
            if self._view and found and found.started_at:
                try:
                    pods = await self._pods(self._view, found)
                    if pods:
                        await self._look_at(found, pods)
                except ApiError as error:
                    # Without permission, retrying is useless.
                    self._display.tell(f"the metrics of the ranks stay unknown: {error.message}")
                    await asyncio.Event().wait()
            await asyncio.sleep(_LOOK_SECONDS + _LOOK_SECONDS_PER_POD * len(pods))

    async def _pods(self, view: JobView, found: RunStatus) -> list[str]:
        """The names of a run's pods: fixed, or those that its JobSet created."""
        if view.job is None or not is_by_job_set(view):
            return _pods(view, found)
        if self._made.run != found.name or len(self._made.names) < view.job.spec.resources.pods:
            # Pods are never recreated, so a full list is valid until the run ends.
            try:
                owned = await pods_of(self._job, view, view.job.metadata.uid)
            except ApiError as error:
                if _is_forbidden(error):
                    raise
                return []
            self._made = _Made(found.name, [pod["metadata"]["name"] for pod in owned if run_of(pod) == found.name])
        return self._made.names

    async def _look_at(self, found: RunStatus, pods: list[str]) -> None:
        answers = await asyncio.gather(*(self._readings(pod) for pod in pods))
        if self._ranks is None or self._ranks.run != found.name:
            self._ranks = Ranks(found.name)
        self._ranks.seen(time.monotonic(), [reading for answer in answers for reading in answer])
        if not self._display.is_live and time.monotonic() >= self._told_at + _TOLD_EVERY_SECONDS:
            self._tell_ranks(self._ranks)

    async def _readings(self, pod: str) -> list[Reading]:
        lines = self._job.cluster.pod_lines(
            self._job.namespace, f"{pod}:{METRICS_PORT}", "proxy/metrics", {}, _METRICS_SECONDS
        )
        try:
            return readings("\n".join([line async for line in _some(lines)]))
        except ApiError as error:
            if _is_forbidden(error):
                raise
            return []  # it does not serve them yet, or has just ended

    def _tell_ranks(self, ranks: Ranks) -> None:
        facts = speed(ranks)
        if not facts:
            return
        fullest = max(ranks.latest, key=lambda each: each.peak_bytes)
        peak = over(fullest.peak_bytes, fullest.total_bytes)
        self._display.tell(f"{ranks.run}: {', '.join(facts)}, rank {fullest.rank} is the fullest with {peak}")
        self._told_at = time.monotonic()

    async def _redraw(self) -> None:
        while True:
            await asyncio.sleep(_REDRAW_SECONDS)
            self._show()

    def _show(self) -> None:
        if self._view is not None and self._display.is_live:
            screen, now = self._display.screen, time.time()
            self._display.show(live_page(screen, self._view, self._ranks, now, self._trouble))

    def _end(self, view: JobView) -> None:
        self._display.end(["", *page(self._display.screen, view, time.time())])


def _is_forbidden(error: ApiError) -> bool:
    return error.status == 403 and error.kind is ErrorKind.REFUSED


def _pods(view: JobView, run: RunStatus) -> list[str]:
    """The names of a run's pods."""
    kind = RunKind.PROBE if run.is_probe else RunKind.TRAIN
    pods = view.job.spec.resources.pods if view.job else 1
    return [pod_name(view.name, kind, run.number, index) for index in range(pods)]


async def _some(lines: AsyncIterator[str]) -> AsyncIterator[str]:
    """The first lines of a response that may be endless."""
    left = _MOST_LINES
    async for line in lines:
        yield line
        left -= 1
        if not left:
            return
