"""`memtune logs NAME`: the logs of a run's ranks, the failing rank first, from pods or from this machine."""

from __future__ import annotations

import argparse
import asyncio
import io
import re
import sys
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple

from memtune.api.status import AttemptStatus, EmulationStatus, ProbeStatus, RunStatus
from memtune.controller.observation import PodObservation, RunObservation
from memtune.controller.records import has_ended
from memtune.controller.verdict import conclude
from memtune.wire.names import job_stem
from memtune.wire.report import LOG_MARK, Report
from memtune_cli.errors import InputError
from memtune_cli.input import cluster
from memtune_cli.input.cluster import JobAddress
from memtune_cli.input.job_view import JobView, job_view_of
from memtune_cli.input.local_job import job_view_at
from memtune_cli.input.named_job import state_directory
from memtune_cli.input.run_pods import pods_of
from memtune_operator.api_errors import ApiError
from memtune_operator.local.runs import LocalRun
from memtune_operator.pods.kinds import Manifest
from memtune_operator.pods.pod_reader import index_of, observe, run_of
from memtune_operator.pods.template_errors import TemplateError
from memtune_operator.pods.wrapped_container import wrapped_index

_RANK = re.compile(r"\[rank (\d+)\] ")
_READ_SECONDS = 120.0
_FOLLOW_SECONDS = 30 * 86_400.0
_LOOK_AGAIN_SECONDS = 2.0


class _Pod(NamedTuple):
    """One pod or local process of a run; ``lines`` streams its log."""

    name: str
    place: int
    lines: Callable[[bool], AsyncIterator[str]]


class _Failure(NamedTuple):
    """The failure that ended a run: the pod's index, and the rank if its report names one."""

    place: int
    rank: int | None
    message: str


def run(arguments: argparse.Namespace) -> int:
    """Print the logs of one run; return 130 if interrupted."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Logs may hold characters that the terminal's encoding lacks.
        sys.stdout.reconfigure(errors="replace")
    directory = state_directory(arguments)
    return asyncio.run(_of_machine(directory, arguments) if directory else _of_cluster(arguments))


async def _of_machine(directory: Path, arguments: argparse.Namespace) -> int:
    view = job_view_at(directory)
    runs = {log.parent.name: LocalRun(log.parent, lambda: None) for log in (directory / "runs").glob("*/log")}
    record = _chosen(view, set(runs), arguments.run)
    found = runs[record.name]
    seen = found.observe()
    await _show(view, record, [_Pod(found.name, 0, found.log)], [seen] if seen else [], arguments)
    return 0


async def _of_cluster(arguments: argparse.Namespace) -> int:
    async with cluster.address(arguments) as job:
        manifest = await job.read()
        view = job_view_of(manifest)
        owned = await pods_of(job, view, manifest["metadata"]["uid"])
        record = _chosen(view, {run_of(pod) for pod in owned}, arguments.run)
        manifests = [pod for pod in owned if run_of(pod) == record.name and index_of(pod) is not None]
        now, resource = time.time(), _gpu_resource(view)
        seen = [observe(pod, index_of(pod) or 0, resource, None, now) for pod in manifests]
        await _show(view, record, [_pod(job, view, pod) for pod in manifests], seen, arguments)
    return 0


async def _show(
    view: JobView, record: RunStatus, pods: list[_Pod], seen: list[PodObservation], arguments: argparse.Namespace
) -> None:
    pods = _of_rank(view, record, pods, arguments.rank)
    if arguments.follow:
        await asyncio.gather(*(_follow(pod, arguments.rank) for pod in pods))
    else:
        await _print(pods, _failure(record, seen) if arguments.rank is None else None, arguments.rank)


def _chosen(view: JobView, present: set[str], asked: str | None) -> RunStatus:
    """The requested run, else the newest started one that still has pods."""
    order = (EmulationStatus, ProbeStatus, AttemptStatus)
    runs = sorted(view.trail, key=lambda run: (order.index(type(run)), run.number))
    if asked is not None:
        runs = [run for run in runs if asked in (run.name, run.name.removeprefix(f"{job_stem(view.name)}-"))]
        if not runs:
            known = ", ".join(run.name.removeprefix(f"{job_stem(view.name)}-") for run in view.trail) or "none"
            raise InputError(f"--run: {view.name} has no run {asked}; its runs are: {known}")
    found = [run for run in runs if run.name in present]
    if not found:
        raise InputError(_no_pods(view, runs[-1] if runs else None))
    begun = [run for run in found if run.started_at or has_ended(run)]
    return (begun or found)[-1]


def _no_pods(view: JobView, run: RunStatus | None) -> str:
    if run is None:
        return f"{view.name} has started no run yet: {view.status.message}"
    said = f"; of {run.name} this is known: {run.message}" if run.message else ""
    if view.state:
        return f"the log of {run.name} is gone{said}"
    kept = "those of the last two failed runs and of the one that trained to its end are kept"
    if view.job and view.job.spec.pod_retention == "None":
        kept = "spec.podRetention None keeps none"
    return f"the pods of {run.name} are gone ({kept}){said}"


def _pod(job: JobAddress, view: JobView, manifest: Manifest) -> _Pod:
    """The log of a pod's wrapped container, or of the init container that prevented it from starting."""
    name = manifest["metadata"]["name"]
    lines = partial(_lines, job, name, _container(view, manifest))
    return _Pod(name, index_of(manifest) or 0, lines)


def _container(view: JobView, manifest: Manifest) -> str:
    status, spec = manifest.get("status") or {}, manifest["spec"]
    for each in status.get("initContainerStatuses") or []:
        if ((each.get("state") or {}).get("terminated") or {}).get("exitCode"):
            return str(each["name"])
    try:
        position = wrapped_index(spec["containers"], _gpu_resource(view))
    except TemplateError:
        position = 0
    return str(spec["containers"][position]["name"])


def _gpu_resource(view: JobView) -> str:
    return view.job.spec.resources.gpu_resource if view.job else ""


def _of_rank(view: JobView, record: RunStatus, pods: list[_Pod], rank: int | None) -> list[_Pod]:
    """The pods in order, or only the one with the given rank."""
    ordered = sorted(pods, key=lambda pod: pod.place)
    if rank is None:
        return ordered
    if rank >= view.world:
        raise InputError(f"--rank: {record.name} has ranks 0 to {view.world - 1}, not {rank}")
    per_pod = view.job.spec.resources.gpus_per_pod if view.job else 1
    found = [pod for pod in ordered if pod.place == rank // per_pod]
    if not found:
        raise InputError(f"--rank: the pod of rank {rank} of {record.name} is gone; leave --rank out to see the others")
    return found


def _failure(record: RunStatus, seen: list[PodObservation]) -> _Failure | None:
    """The failure that ended the run, determined as the operator does."""
    conclusion = conclude(RunObservation(tuple(seen), is_probe=record.is_probe))
    if conclusion is None or conclusion.pod_index is None:
        return None
    report = next((pod.report for pod in seen if pod.index == conclusion.pod_index), None)
    rank = report.rank if isinstance(report, Report) else None
    return _Failure(conclusion.pod_index, rank, f"{conclusion.verdict}: {conclusion.message}")


async def _print(pods: list[_Pod], failure: _Failure | None, rank: int | None) -> None:
    """Print pod by pod, starting with the failing rank of the failing pod."""
    for pod in sorted(pods, key=lambda pod: (failure is None or pod.place != failure.place, pod.place)):
        blamed = failure if failure and pod.place == failure.place else None
        first = blamed.rank if blamed else None
        if failure or len(pods) > 1:
            who = f"rank {first} of {pod.name}" if first is not None else pod.name
            print(f"==> {who}{f': {blamed.message}' if blamed else ''} <==")
        others = []
        async for line in pod.lines(False):
            if line.startswith(LOG_MARK):
                continue  # machine-readable; its failure is printed above
            if _is_of(rank, line) and _is_of(first, line):
                print(line)
            elif _is_of(rank, line):
                others.append(line)
        if others:
            print("\n".join([f"==> the others of {pod.name} <==", *others]))


def _is_of(rank: int | None, line: str) -> bool:
    """Whether a line was printed by the rank; True without a rank."""
    match = _RANK.match(line)
    return rank is None or (match is not None and int(match[1]) == rank)


async def _lines(job: JobAddress, pod: str, container: str, follow: bool) -> AsyncIterator[str]:
    """The lines of a container's log. To follow it, wait until the container starts."""
    query = {"container": container, **({"follow": "true"} if follow else {})}
    seconds = _FOLLOW_SECONDS if follow else _READ_SECONDS
    has_started = False
    while True:
        try:
            async for line in job.cluster.pod_lines(job.namespace, pod, "log", query, seconds):
                yield line
            return
        except ApiError as error:
            # It may have started between both requests, but then the next one succeeds.
            if not follow or error.status != HTTPStatus.BAD_REQUEST or has_started:
                raise
            has_started = not await _is_waiting(job, pod, container)
        await asyncio.sleep(_LOOK_AGAIN_SECONDS)


async def _is_waiting(job: JobAddress, pod: str, container: str) -> bool:
    """Whether a container will start, and has no log yet."""
    found_pod = await job.cluster.read("v1", "Pod", job.namespace, pod)
    spec, status = found_pod["spec"], found_pod.get("status") or {}
    containers = {each["name"] for each in (*(spec.get("initContainers") or ()), *spec["containers"])}
    if container not in containers or status.get("phase") in ("Failed", "Succeeded"):
        return False
    found = (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))
    states = [each.get("state") or {} for each in found if each["name"] == container]
    return not any("running" in state or "terminated" in state for state in states)


async def _follow(pod: _Pod, rank: int | None) -> None:
    """Print each line as it arrives."""
    async for line in pod.lines(True):
        if _is_of(rank, line) and not line.startswith(LOG_MARK):
            print(line, flush=True)
