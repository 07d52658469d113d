"""Turns pod objects into the observations that decisions are made from. Pure; a pod may hold anything."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from memtune.controller.observation import PodCondition, PodObservation
from memtune.wire.report import Report, read_report
from memtune.wire.report_checks import ReportError
from memtune.wire.trace_message import LONGEST_BYTES
from memtune_operator.pods import names
from memtune_operator.pods.kinds import Manifest
from memtune_operator.pods.lost_nodes import NodesSeen, is_on_lost_node, silent_since
from memtune_operator.pods.timestamps import seconds_if_any
from memtune_operator.pods.wrapped_container import TemplateError, wrapped_index

_LONGEST_MESSAGE = 1000
# More pods than any run has.
_INDEX = re.compile("[0-9]{1,9}")


def owned_by(objects: Iterable[Manifest], uid: str) -> list[Manifest]:
    """The objects controlled by the object with this uid. Anyone can write labels, so they do not count."""
    return [each for each in objects if _controller_uid(each) == uid]


def held_back(job_set: Manifest) -> list[PodObservation]:
    """A placeholder for the first pod of a JobSet that its queue suspended, with the reason why it is missing."""
    if not (job_set.get("spec") or {}).get("suspend"):
        return []
    sentence = f"JobSet {job_set['metadata']['name']} is suspended by its queue"
    return [PodObservation(0, conditions=(PodCondition("PodScheduled", "False", "SchedulingGated", sentence),))]


def owned_through(objects: Iterable[Manifest], holders: Iterable[Manifest]) -> list[Manifest]:
    """The objects controlled by one of ``holders``."""
    uids = {str(holder["metadata"].get("uid")) for holder in holders}
    return [each for each in objects if _controller_uid(each) in uids]


def image_ids(pods: Iterable[Manifest]) -> set[str]:
    """The image digests of the pods' containers."""
    statuses = (each for pod in pods for each in (pod.get("status") or {}).get("containerStatuses") or [])
    return {content for each in statuses if (content := str(each.get("imageID") or "").rpartition("@")[2])}


def run_of(manifest: Manifest) -> str:
    """The run that the object's labels name."""
    return str((manifest["metadata"].get("labels") or {}).get(names.LABEL_RUN, ""))


def index_of(pod: Manifest) -> int | None:
    """The index of a pod in its run, from its label or its Job's completion index; None if it is invalid."""
    metadata = pod["metadata"]
    text = (metadata.get("labels") or {}).get(names.LABEL_INDEX)
    if text is None:
        text = (metadata.get("annotations") or {}).get(names.ANNOTATION_COMPLETION_INDEX)
    return int(text) if text and _INDEX.fullmatch(str(text)) else None


def observe(
    pod: Manifest,
    index: int,
    gpu_resource: str,
    nodes: NodesSeen | None,
    now_seconds: float,
    lost_after_seconds: float = math.inf,
) -> PodObservation:
    """Observe one pod: why a container waits, and how the wrapped container started and ended.

    Without ``nodes``, the node counts as lost once the pod itself has looked unreachable for ``lost_after_seconds``.
    """
    metadata, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    state = _wrapped_status(pod, gpu_resource).get("state") or {}
    running, ended = state.get("running") or {}, state.get("terminated") or {}
    waiting = next(_waiting(status), {})
    report = _report(ended)
    message = ended.get("message")
    return PodObservation(
        index=index,
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        node=spec.get("nodeName") or "",
        plan=(metadata.get("annotations") or {}).get(names.ANNOTATION_PLAN, ""),
        phase=status.get("phase") or "Pending",
        reason=_text(status.get("reason")),
        message=_text(status.get("message")),
        conditions=tuple(_condition(each) for each in status.get("conditions") or []),
        deleting=bool(metadata.get("deletionTimestamp")),
        node_lost=is_on_lost_node(pod, nodes, now_seconds, lost_after_seconds),
        node_doubted=nodes is None and silent_since(pod) is not None,
        waiting_reason=_text(waiting.get("reason")),
        waiting_message=_text(waiting.get("message")),
        init_exit_code=_init_exit_code(status),
        exit_code=ended.get("exitCode"),
        exit_reason=_text(ended.get("reason")),
        started_at_seconds=seconds_if_any(running.get("startedAt") or ended.get("startedAt")),
        finished_at_seconds=seconds_if_any(ended.get("finishedAt")),
        report=report,
        failure_order=report.failure_order if report else None,
        last_words=message[:LONGEST_BYTES] if isinstance(message, str) and report is None else "",
    )


class Gone(NamedTuple):
    """The record of a pod whose deletion was observed: enough to know how long it held its GPUs."""

    pod: Manifest
    at_seconds: float


def gone(pod: Manifest, now_seconds: float) -> Gone:
    """The record of a pod whose deletion was observed just now."""
    containers = [
        {name: each.get(name) for name in ("name", "resources")}
        for each in (pod.get("spec") or {}).get("containers") or []
    ]
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    return Gone({"spec": {"containers": containers}, "status": {"containerStatuses": statuses}}, now_seconds)


def held_seconds(seen: Gone, gpu_resource: str) -> float | None:
    """How long the wrapped container of a deleted pod ran; None if its kubelet never reported it."""
    state = _wrapped_status(seen.pod, gpu_resource).get("state") or {}
    running, ended = state.get("running") or {}, state.get("terminated")
    start = seconds_if_any(running.get("startedAt") or (ended or {}).get("startedAt"))
    end = seconds_if_any((ended or {}).get("finishedAt")) if ended is not None else seen.at_seconds
    if start is None:
        return 0.0 if ended is None else None
    return max(end - start, 0.0) if end is not None else None


def _controller_uid(manifest: Manifest) -> str:
    owners = manifest["metadata"].get("ownerReferences") or []
    return next((str(owner.get("uid")) for owner in owners if owner.get("controller")), "")


def _wrapped_status(pod: Manifest, gpu_resource: str) -> dict[str, Any]:
    containers = (pod.get("spec") or {}).get("containers") or []
    try:
        name = containers[wrapped_index(containers, gpu_resource)]["name"]
    except TemplateError:
        return {}
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    return next((each for each in statuses if each.get("name") == name), {})


def _waiting(status: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The waiting states of containers, init containers first, without PodInitializing, which only repeats them."""
    for part in ("initContainerStatuses", "containerStatuses"):
        for each in status.get(part) or []:
            waiting = (each.get("state") or {}).get("waiting")
            if waiting and waiting.get("reason") not in (None, "PodInitializing", "ContainerCreating"):
                yield waiting


def _init_exit_code(status: dict[str, Any]) -> int:
    ended = ((each.get("state") or {}).get("terminated") or {} for each in status.get("initContainerStatuses") or [])
    return next((each["exitCode"] for each in ended if each.get("exitCode")), 0)


def _report(ended: dict[str, Any]) -> Report | None:
    """The report in the termination message. The user's container writes it, so an invalid one counts as none."""
    try:
        return read_report(ended["message"]) if ended.get("message") else None
    except ReportError:
        return None


def _condition(condition: dict[str, Any]) -> PodCondition:
    return PodCondition(*(_text(condition.get(name)) for name in ("type", "status", "reason", "message")))


def _text(value: Any) -> str:
    return str(value or "")[:_LONGEST_MESSAGE]
