"""Decides how a run ended: one verdict from its reports, containers and pods.

Pure tables over untrusted input. ``_ENDED`` and ``_WAITING`` classify one pod; ``conclude`` finds the cause among the
pods and drops its echoes: an NCCL abort follows a peer's out-of-memory, a rendezvous times out because a peer was never
scheduled.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from memtune.controller.observation import PodCondition, PodObservation, RunObservation
from memtune.wire.report import BROKEN_GPU, EXIT_CODES, Ending
from memtune.words import Word

ENDED_WELL = "the command ended with exit code 0"

# The kubelet's reason for a pod that exceeded its activeDeadlineSeconds.
PAST_DEADLINE = "DeadlineExceeded"

# One failure ends all ranks within 5 s; clock skew between two nodes may add as much. Endings closer together are
# ordered by kind, not by time.
ECHO_SECONDS = 10.0


class Verdict(Word):
    """The operator's conclusion about a run."""

    SUCCEEDED = "succeeded"
    DEVICE_OOM = "device-oom"
    HOST_OOM = "host-oom"
    DISRUPTED = "disrupted"
    UNSCHEDULABLE = "unschedulable"
    QUEUED = "queued"
    IMAGE_ERROR = "image-error"
    USER_ERROR = "user-error"
    PLAN_NOT_APPLIED = "plan-not-applied"
    HUNG = "hung"


class Conclusion(NamedTuple):
    """The verdict on a run, the pod that decided it (None: the run as a whole), and the cluster's reason."""

    verdict: Verdict
    pod_index: int | None
    message: str


class _Row(NamedTuple):
    """One row of a table: if ``tell`` returns a reason for a pod, the pod has this ``verdict``."""

    verdict: Verdict
    tell: Callable[[PodObservation], str | None]


def conclude(run: RunObservation) -> Conclusion | None:
    """The verdict on a run; None while it runs, or has not started and nothing says why."""
    if run.rejection:
        return Conclusion(Verdict.UNSCHEDULABLE, None, run.rejection)
    failure, waiting = _first_failure(run.pods), _first_waiting(run.pods)
    if failure and not (waiting and failure.verdict in (Verdict.USER_ERROR, Verdict.HUNG)):
        return _unless_not_applied(_unless_hung(failure, run), run.pods)
    if waiting:
        return waiting
    if run.pods and all(_succeeded(pod) for pod in run.pods):
        return _unless_not_applied(_success(run), run.pods)
    if run.overdue:
        return Conclusion(Verdict.HUNG, None, "the run neither ended nor reported within its time")
    return None


def waits(run: RunObservation) -> Conclusion | None:
    """Why a run cannot start, if the cluster says so."""
    conclusion = conclude(run)
    return conclusion if conclusion and is_waiting(conclusion, run) else None


def is_waiting(conclusion: Conclusion, run: RunObservation) -> bool:
    """Whether the run waits to be started, and may still start."""
    if conclusion.verdict in (Verdict.QUEUED, Verdict.UNSCHEDULABLE):
        return True
    pod = next((pod for pod in run.pods if pod.index == conclusion.pod_index), None)
    return conclusion.verdict is Verdict.IMAGE_ERROR and pod is not None and not pod_is_over(pod)


def pod_is_over(pod: PodObservation) -> bool:
    """Whether the pod can do no more."""
    return pod.exit_code is not None or not pod.present or bool(pod.init_exit_code) or pod.phase == "Failed"


def _success(run: RunObservation) -> Conclusion:
    silent = [pod for pod in run.pods if not (pod.report and pod.report.ending == Ending.SUCCEEDED)]
    # The fullest rank may be on the silent pod; a training run that finished has finished anyway.
    if not silent or (len(silent) < len(run.pods) and not run.is_probe):
        return Conclusion(Verdict.SUCCEEDED, None, ENDED_WELL)
    # Without a report nothing was measured, and the plan may not have been applied.
    message = f"{ENDED_WELL} but no report of it: the runner was not part of it"
    where = f" on node {silent[0].index}" if len(silent) < len(run.pods) else ""
    return Conclusion(Verdict.USER_ERROR, silent[0].index, message + where)


def _unless_not_applied(conclusion: Conclusion, pods: tuple[PodObservation, ...]) -> Conclusion:
    """A measurement of another plan than requested is invalid; an error stays an error."""
    if conclusion.verdict not in (Verdict.SUCCEEDED, Verdict.DEVICE_OOM, Verdict.HOST_OOM):
        return conclusion
    for pod in pods:
        if pod.mismatch:
            return Conclusion(Verdict.PLAN_NOT_APPLIED, pod.index, pod.mismatch)
    return conclusion


def _unless_hung(failure: Conclusion, run: RunObservation) -> Conclusion:
    """A run over its time that the kubelet ended is hung; otherwise the deadline is the template's own."""
    is_ended = any(pod.index == failure.pod_index and pod.reason == PAST_DEADLINE for pod in run.pods)
    is_hung = run.overdue and is_ended and failure.verdict is Verdict.USER_ERROR
    return failure._replace(verdict=Verdict.HUNG) if is_hung else failure


def _first_failure(pods: tuple[PodObservation, ...]) -> Conclusion | None:
    """The first failure over all pods, without its echoes."""
    failed = [(pod, found) for pod in pods if (found := _look_up(_ENDED, pod))]
    ordered = [order for pod, _ in failed if (order := pod.failure_order) is not None]
    # The store's order holds among pods that reached the store. A pod that was killed outright never did, so it stays a
    # candidate beside the first of the others.
    causes = [(pod, found) for pod, found in failed if not ordered or pod.failure_order in (None, min(ordered))]
    if not causes:
        return None
    times = [pod.finished_at_seconds for pod, _ in causes if pod.finished_at_seconds is not None]
    deadline = min(times, default=0.0) + ECHO_SECONDS
    early = [(pod, found) for pod, found in causes if (pod.finished_at_seconds or 0.0) <= deadline]
    return min((found for _, found in early), key=_rank)


def _first_waiting(pods: tuple[PodObservation, ...]) -> Conclusion | None:
    found = [matches for pod in pods if not _has_ended(pod) and (matches := _look_up(_WAITING, pod))]
    return min(found, key=_rank, default=None)


def _rank(conclusion: Conclusion) -> tuple[int, int]:
    return _CAUSES_FIRST.index(conclusion.verdict), conclusion.pod_index or 0


def _look_up(table: tuple[_Row, ...], pod: PodObservation) -> Conclusion | None:
    for verdict, tell in table:
        if (why := tell(pod)) is not None:
            return Conclusion(verdict, pod.index, why)
    return None


def _has_ended(pod: PodObservation) -> bool:
    return pod.exit_code is not None or not pod.present


def _succeeded(pod: PodObservation) -> bool:
    return pod.exit_code == 0


def _reported(*endings: Ending) -> Callable[[PodObservation], str | None]:
    def tell(pod: PodObservation) -> str | None:
        if pod.report is None or pod.report.ending not in endings:
            return None
        return pod.report.message or f"the runner reported {str(pod.report.ending)!r}"

    return tell


def _exited(*codes: int, because: str) -> Callable[[PodObservation], str | None]:
    def tell(pod: PodObservation) -> str | None:
        return f"exit code {pod.exit_code}: {because}" if pod.exit_code in codes else None

    return tell


def _oom_killed(pod: PodObservation) -> str | None:
    return "OOMKilled: the container took more host memory than its limit" if pod.exit_reason == "OOMKilled" else None


def _pod_disrupted(pod: PodObservation) -> str | None:
    """Why the cluster took the pod away; None if the command had already succeeded."""
    return None if _succeeded(pod) else next((why for why in _disruptions(pod) if why), None)


def _disruptions(pod: PodObservation) -> Iterator[str | None]:
    """Every sign that the cluster, not the command, ended the pod."""
    target = _condition(pod, "DisruptionTarget", "True")
    yield "gone before anybody saw how it ended" if not pod.present else None
    yield "its node is lost" if pod.node_lost or pod.reason == "NodeLost" else None
    yield _words(target.reason, target.message) if target else None
    yield _words(pod.reason, pod.message) if _DISRUPTION_REASON.fullmatch(pod.reason) else None
    yield "the pod was deleted" if pod.deleting and pod.exit_code is not None else None


def broken_gpu(pod: PodObservation) -> str | None:
    """The driver's error about broken hardware: not the job's fault, and another node may work."""
    if pod.report is None or pod.report.ending not in (Ending.ERROR, Ending.KILLED):
        return None
    return pod.report.message if BROKEN_GPU.search(pod.report.message) else None


def _never_ran(pod: PodObservation) -> str | None:
    """The kubelet gave up on the pod before its command ran, for a reason not listed here."""
    if pod.phase != "Failed" or pod.exit_code is not None or pod.init_exit_code:
        return None
    return _words(pod.reason or "Failed", pod.message)


def _init_failed(pod: PodObservation) -> str | None:
    return f"an init container ended with exit code {pod.init_exit_code}" if pod.init_exit_code else None


def _past_its_deadline(pod: PodObservation) -> str | None:
    return _words(pod.reason, pod.message) if pod.reason == PAST_DEADLINE else None


def _not_startable(pod: PodObservation) -> str | None:
    return _words(pod.exit_reason, pod.message) if pod.exit_reason in _START_REASONS else None


def _failed_by_itself(pod: PodObservation) -> str | None:
    if not pod.exit_code:
        return None
    return (pod.report.message if pod.report else "") or f"exit code {pod.exit_code}"


def _cannot_be_made(pod: PodObservation) -> str | None:
    return _words(pod.waiting_reason, pod.waiting_message) if pod.waiting_reason in _WAITING_REASONS else None


def _is_queued(pod: PodObservation) -> str | None:
    held = _condition(pod, "PodScheduled", "False")
    if held and (held.reason == "SchedulingGated" or _GROUP_WAITS.search(held.message)):
        return _words(held.reason, held.message)
    return None


def _is_unschedulable(pod: PodObservation) -> str | None:
    held = _condition(pod, "PodScheduled", "False")
    return _words(held.reason, held.message) if held else None


def _condition(pod: PodObservation, kind: str, status: str) -> PodCondition | None:
    return next((each for each in pod.conditions if (each.type, each.status) == (kind, status)), None)


def _words(reason: str, message: str) -> str:
    return f"{reason}: {message}" if reason and message else reason or message


# Reasons that the kubelet, the node controller and the scheduler give to pods that they end. The kubelet gives OutOf...
# and admission errors when the node no longer has what the scheduler assumed.
_DISRUPTION_REASON = re.compile(
    r"Evicted|Preempt(ed|ing|ion)|Shutdown|NodeShutdown|Terminated|NodeAffinity|UnexpectedAdmissionError|[Oo]ut[Oo]f.+"
)
# Reasons of containerd and the kubelet for a command that cannot start, such as a missing python.
_START_REASONS = frozenset({"StartError", "ContainerCannotRun", "CreateContainerError", "CreateContainerConfigError"})
_WAITING_REASONS = _START_REASONS | {
    "ImagePullBackOff",
    "ErrImagePull",
    "InvalidImageName",
    "ErrImageNeverPull",
    "ImageInspectError",
    "RegistryUnavailable",
    "RunContainerError",
}
# Volcano: "pod group is not ready"; coscheduling: "rejected due to timeout after waiting ... PodGroup".
_GROUP_WAITS = re.compile(r"pod ?group", re.IGNORECASE)

# A pod that ended, or will. The first matching row wins.
_ENDED = (
    _Row(Verdict.DEVICE_OOM, _reported(Ending.DEVICE_OOM)),
    _Row(Verdict.HOST_OOM, _reported(Ending.HOST_OOM)),
    _Row(Verdict.DEVICE_OOM, _exited(EXIT_CODES[Ending.DEVICE_OOM], because="out of GPU memory")),
    _Row(Verdict.HOST_OOM, _exited(EXIT_CODES[Ending.HOST_OOM], because="out of host memory")),
    _Row(Verdict.HOST_OOM, _oom_killed),
    # Its ranks get SIGTERM as in any disruption, and report that.
    _Row(Verdict.USER_ERROR, _past_its_deadline),
    _Row(Verdict.DISRUPTED, _reported(Ending.TERMINATED)),
    _Row(Verdict.DISRUPTED, _pod_disrupted),
    _Row(Verdict.DISRUPTED, broken_gpu),
    _Row(Verdict.HUNG, _reported(Ending.HUNG)),
    _Row(Verdict.HUNG, _exited(EXIT_CODES[Ending.HUNG], because="no optimizer step for too long")),
    _Row(Verdict.USER_ERROR, _reported(Ending.ERROR, Ending.BAD_INPUT)),
    _Row(Verdict.USER_ERROR, _exited(EXIT_CODES[Ending.BAD_INPUT], because="what the runner was given cannot work")),
    _Row(Verdict.PLAN_NOT_APPLIED, _reported(Ending.PLAN_NOT_APPLIED)),
    _Row(
        Verdict.PLAN_NOT_APPLIED,
        _exited(EXIT_CODES[Ending.PLAN_NOT_APPLIED], because="the script trains otherwise than its plan says"),
    ),
    _Row(Verdict.IMAGE_ERROR, _not_startable),
    _Row(Verdict.IMAGE_ERROR, _init_failed),
    # The kernel's out-of-memory killer acted without a full cgroup: the node's memory was full.
    _Row(Verdict.HOST_OOM, _exited(137, 247, because="killed without a request: the host ran out of memory")),
    _Row(Verdict.DISRUPTED, _exited(143, because="terminated from outside")),
    _Row(Verdict.USER_ERROR, _failed_by_itself),
    _Row(Verdict.DISRUPTED, _never_ran),
)

# A pod whose command has not started. None of these counts as a retry.
_WAITING = (
    _Row(Verdict.IMAGE_ERROR, _cannot_be_made),
    _Row(Verdict.QUEUED, _is_queued),
    _Row(Verdict.UNSCHEDULABLE, _is_unschedulable),
)

# Among endings at about the same time, causes come before their possible effects.
_CAUSES_FIRST = (
    Verdict.DEVICE_OOM,
    Verdict.HOST_OOM,
    Verdict.DISRUPTED,
    Verdict.IMAGE_ERROR,
    Verdict.UNSCHEDULABLE,
    Verdict.QUEUED,
    Verdict.PLAN_NOT_APPLIED,
    Verdict.HUNG,
    Verdict.USER_ERROR,
)
