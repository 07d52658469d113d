"""What became of the runs: observations are folded into the records, each run ends once and for all."""

from __future__ import annotations

from math import inf
from typing import Any

from memtune.api.job import Job
from memtune.api.status import MAX_NATURAL, MAX_STEPS, AttemptStatus, RunStatus
from memtune.controller import budget, reasons
from memtune.controller import expected_pods as completing
from memtune.controller import measurements as measuring
from memtune.controller.context import LOOK_AGAIN_SECONDS, Context
from memtune.controller.messages import ended_event, replaced_batch, run_words
from memtune.controller.observation import PodObservation, RunObservation
from memtune.controller.records import OUT_OF_MEMORY, ended_as, has_ended, live, replaced, without_emulations
from memtune.controller.text import line, sentence
from memtune.controller.times import to_seconds, to_text
from memtune.controller.verdict import ECHO_SECONDS, PAST_DEADLINE, Conclusion, Verdict, broken_gpu, conclude
from memtune.planning.ladder import OutOfMemoryKind
from memtune.wire.report import Ending

# Pods that run while others of the same run still wait hold GPUs for nothing; longer than this they do not.
GANG_PATIENCE_SECONDS = 600.0
_NODE_REASONS = ("NodeLost", "NodeShutdown", "Shutdown")


def settle(context: Context) -> Context:
    """Fold in what was seen of every run that is recorded as not ended."""
    for record in live(context.status):
        context = _settled(context, record)
    if any(pod.node_doubted for run in context.observed.runs.values() for pod in run.pods):
        # Nobody tells when the silence of its node has lasted for long enough.
        context = context.waking(LOOK_AGAIN_SECONDS)
    return _last_words(context)


def waits(run: RunObservation) -> Conclusion | None:
    """Why a run that has not ended cannot start, if the cluster says so."""
    conclusion = conclude(run)
    return conclusion if conclusion and _is_waiting(conclusion, run) else None


def _is_waiting(conclusion: Conclusion, run: RunObservation) -> bool:
    if conclusion.verdict in (Verdict.QUEUED, Verdict.UNSCHEDULABLE):
        return True
    pod = next((pod for pod in run.pods if pod.index == conclusion.pod_index), None)
    return conclusion.verdict is Verdict.IMAGE_ERROR and pod is not None and not _is_over(pod)


def _held_in_vain(conclusion: Conclusion) -> Conclusion:
    """Pods that waited for others held their GPUs meanwhile: trying that again and again has to have an end."""
    if conclusion.verdict is Verdict.IMAGE_ERROR:
        return conclusion
    return conclusion._replace(
        verdict=Verdict.DISRUPTED, message=f"some pods ran and waited in vain for the others: {conclusion.message}"
    )


def _is_over(pod: PodObservation) -> bool:
    return pod.exit_code is not None or not pod.present or bool(pod.init_exit_code) or pod.phase == "Failed"


def _settled(context: Context, record: RunStatus) -> Context:
    run = context.runs[record.name]
    seen = record.model_copy(
        update={
            "created": record.created or all(pod.uid for pod in run.pods),
            "started_at": record.started_at or measuring.started_at(run),
        }
    )
    if seen != record:
        context = context.becoming(replaced(context.status, seen))
    starts = _starts(run)
    if starts and not context.status.first_running_at:
        context = context.having(first_running_at=to_text(min(starts)))
    if starts and not context.status.gpu_product and is_kept_to_met(context.job):
        context = context.having(gpu_product=_product(context, run))
    if not isinstance(record, AttemptStatus) and _waited_too_long(run):
        # Tried again and again it would never end: it counts as whatever else comes over a run from outside.
        waited = Conclusion(Verdict.DISRUPTED, None, "its pods waited until their deadline, and never started")
        return _ended(context, seen, run, waited)
    conclusion = conclude(run)
    if conclusion is None:
        return context
    if _is_waiting(conclusion, run):
        if not _is_broken(context, run):
            return context
        conclusion = _held_in_vain(conclusion)
    if (seconds := _until_the_cause(run, context.now)) > 0:
        return context.waking(seconds)
    return _ended(context, seen, run, conclusion)


def _waited_too_long(run: RunObservation) -> bool:
    """Whether the deadline that is to keep a probe from holding GPUs for ever has met one that only waited."""
    return not _starts(run) and any(pod.reason == PAST_DEADLINE for pod in run.pods)


def _until_the_cause(run: RunObservation, now: float) -> float:
    """How long the pods that go on may still tell why the others failed: an echo may end before its cause."""
    orders = [pod.failure_order for pod in run.pods if pod.failure_order is not None]
    ends = [pod.finished_at_seconds for pod in run.pods if pod.exit_code and pod.finished_at_seconds is not None]
    goes_on = any(pod.started_at_seconds is not None and not _is_over(pod) and not pod.node_lost for pod in run.pods)
    if 0 in orders or not ends or not goes_on:
        return 0.0
    passed = now - min(ends)
    # A clock that is further ahead than that is wrong.
    return ECHO_SECONDS - passed if passed > -ECHO_SECONDS else 0.0


def _starts(run: RunObservation) -> list[float]:
    """When the pods that have started did so."""
    return [pod.started_at_seconds for pod in run.pods if pod.started_at_seconds is not None]


def is_kept_to_met(job: Job) -> bool:
    """Whether the GPU that a job meets is its GPU from then on: it needs a real one, and names none itself."""
    return job.spec.resources.device == "cuda" and not job.spec.resources.gpu_product


def _product(context: Context, run: RunObservation) -> str:
    """The GPU product that a run is on, to which all later ones are kept; empty where its nodes do not tell one."""
    known = {node.name: node.gpu_product for node in context.observed.nodes or ()}
    found = {known.get(pod.node, "") for pod in run.pods}
    return line(found.pop(), 63) if len(found) == 1 else ""


def _is_broken(context: Context, run: RunObservation) -> bool:
    """Whether some pods of a run wait for what others have, in vain: it can only start anew."""
    starts = _starts(run)
    is_late = bool(starts) and context.now - min(starts) > GANG_PATIENCE_SECONDS
    return is_late or any(_is_over(pod) for pod in run.pods)


def _ended(context: Context, record: RunStatus, run: RunObservation, conclusion: Conclusion) -> Context:
    ended_at = max((pod.finished_at_seconds for pod in run.pods if pod.finished_at_seconds), default=context.now)
    found: dict[str, Any] = {
        **_spent(context, record, run),
        **measuring.measured(run),
        "verdict": str(conclusion.verdict),
        "ended_at": to_text(min(ended_at, context.now)),
        "message": sentence(conclusion.message),
    }
    warnings = measuring.warnings(run.pods)
    if warnings and conclusion.verdict is Verdict.SUCCEEDED:
        found["message"] = sentence(warnings)
    if conclusion.verdict in OUT_OF_MEMORY:
        found |= out_of_memory(conclusion, run, record)
    if conclusion.verdict is Verdict.DISRUPTED:
        if isinstance(record, AttemptStatus):
            found["lost_node"] = _lost_node(conclusion, run)
        else:
            # A relaunch of an attempt costs the budget, a probe's end does: another may be measured next.
            context = context.having(disruptions=context.status.disruptions + 1)
    context = _closed(context, record, found)
    if warnings:
        text = f"{run_words(record)}: {sentence(warnings)}"
        context = context.telling("Warning", reasons.SCRIPT_WARNING, text)
    if completing.has_foreign_report(context.observed, record):
        context = context.telling("Warning", reasons.REPORT_IGNORED, f"run {record.name}: {completing.IGNORED}")
    return context


def stopped(context: Context, record: RunStatus, why: str) -> Context:
    """End a run that the operator itself takes away. It has no verdict: nothing was learned of its plan."""
    found = {"ended_at": to_text(context.now), "message": sentence(why)}
    return _closed(context, record, {**_spent(context, record, context.runs[record.name]), **found})


def all_stopped(context: Context, why: str) -> Context:
    """End every run that goes on."""
    for record in live(context.status):
        context = stopped(context, record, why)
    context = context.becoming(without_emulations(context.status, why, context.now))
    trace = context.status.trace
    if trace is None or has_ended(trace):
        return context
    return context.having(trace=trace.model_copy(update={"ended_at": to_text(context.now), "message": why}))


def _closed(context: Context, record: RunStatus, found: dict[str, Any]) -> Context:
    new = record.model_copy(update=found)
    context = context.becoming(replaced(context.status, new))
    pods = context.runs[record.name].pods
    if isinstance(record, AttemptStatus):
        unknown = {"trained_samples": 0, "total_samples": 0}
        context = context.having(**(measuring.trained(pods) or unknown))
    else:
        spent = min(context.status.gpu_seconds_spent + new.gpu_seconds, MAX_NATURAL)
        steps = (*context.status.measured_steps, *measuring.measured_steps(new.number, context.runs[record.name]))
        context = context.having(gpu_seconds_spent=spent, measured_steps=steps[-MAX_STEPS:])
    if (batch := measuring.own_batch(pods)) is not None:
        is_jobs = batch == context.job.spec.training.global_batch_size
        is_new = not is_jobs and batch != context.status.own_batch
        context = context.having(own_batch=0 if is_jobs else batch)
        if is_new:
            text = f"{run_words(new)}: {replaced_batch(context.status)}"
            context = context.telling("Warning", reasons.SCRIPT_WARNING, text)
    return context.telling(*ended_event(new))


def _spent(context: Context, record: RunStatus, run: RunObservation) -> dict[str, Any]:
    per_pod, is_probe = context.job.spec.resources.gpus_per_pod, not isinstance(record, AttemptStatus)
    longest = budget.most_seconds(context.job) if is_probe else inf
    seen = measuring.gpu_seconds(run, per_pod, context.now, longest)
    lost = per_pod * sum(_lost_seconds(context, record, pod, longest) for pod in run.pods if not pod.present)
    found: dict[str, Any] = {"gpu_seconds": min(seen + int(lost), MAX_NATURAL)}
    if not is_probe:
        found |= measuring.checkpointed(measuring.reports_of(run.pods), _may_have_trained(record, run))
    return found


def _lost_seconds(context: Context, record: RunStatus, pod: PodObservation, longest: float) -> float:
    """How long a pod that is gone has held its GPUs; where nobody saw it go, how long it may have."""
    if pod.held_seconds is not None:
        return min(pod.held_seconds, longest)
    started = to_seconds(record.started_at)
    if started is not None:
        return min(max(context.now - started, 0.0), longest)
    return longest if longest < inf else 0.0


def _may_have_trained(record: RunStatus, run: RunObservation) -> bool:
    """Nothing trains before all pods have found each other; what one did that nobody saw go is not known."""
    if record.started_at is not None:
        return True
    awaited = [pod for pod in run.pods if pod.started_at_seconds is None and not _is_over(pod)]
    gone = [pod for pod in run.pods if not pod.present]
    if awaited or any(pod.held_seconds == 0.0 for pod in gone):
        return False
    return bool(_starts(run)) or bool(gone)


def out_of_memory(conclusion: Conclusion, run: RunObservation, record: RunStatus) -> dict[str, Any]:
    """What the reports of a run that ran out of memory tell of it, as fields of its record."""
    if conclusion.verdict is Verdict.HOST_OOM:
        return {}
    pods = sorted(run.pods, key=lambda pod: pod.index != conclusion.pod_index)
    # The memory of a rank that was only told to stop is not what was too little.
    reports = [report for report in measuring.reports_of(pods) if report.ending is Ending.DEVICE_OOM][:1]
    kind = measuring.kind_of_oom(reports[0] if reports else None)
    phase = reports[0].phase if reports else None
    found = {
        "out_of_memory": kind.value,
        "phase": phase.value if phase else "",
        "demanded_bytes": measuring.demanded_bytes(reports),
    }
    if kind is OutOfMemoryKind.EVALUATION and isinstance(record, AttemptStatus):
        # What the script really took: the job may describe no evaluation, or another one.
        found["evaluation_batch"] = reports[0].applied.evaluation_batch or record.evaluation_batch
    return found


def _lost_node(conclusion: Conclusion, run: RunObservation) -> str:
    """The node that took the run down, if it was the node's fault: preemption and eviction are not."""
    pod = next((pod for pod in run.pods if pod.index == conclusion.pod_index), None)
    if pod is None or not (pod.node_lost or pod.reason in _NODE_REASONS or broken_gpu(pod)):
        return ""
    return pod.node[:128]


def _last_words(context: Context) -> Context:
    """A train run that was stopped saves a checkpoint on its way out, and its report comes after its end."""
    for record in context.status.attempts[-1:]:
        if not has_ended(record) or ended_as(record, Verdict.SUCCEEDED):
            continue
        pods = context.runs[record.name].pods
        reports = measuring.reports_of(pods)
        told = measuring.checkpointed(reports, is_started=False)
        # One rank that saved nothing says nothing of the others.
        is_first_word = record.checkpoint == "unknown" and 0 < len(reports) == len(pods)
        if is_first_word or told.get("checkpoint_samples", 0) > record.checkpoint_samples:
            context = context.becoming(replaced(context.status, record.model_copy(update=told)))
        if trained := measuring.trained(pods):
            context = context.having(**trained)
    return context
