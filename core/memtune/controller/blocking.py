"""Conditions Stalled and Queued: why a job waits, in the refusing component's words. Waiting counts as no retry."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from memtune.api import reasons
from memtune.api.status import ConditionType, RunStatus
from memtune.controller.context import Context
from memtune.controller.host_requests import asked_bytes
from memtune.controller.observation import Blocker
from memtune.controller.pods import avoided_nodes
from memtune.controller.product_choice import cheapest, compared, unknown_cost
from memtune.controller.records import changed_fields, has_ended, live, spec_changed
from memtune.controller.verdict import Verdict, waits
from memtune.units import gib

# How soon to retry after a refusal; a watch event retries sooner.
AGAIN_SECONDS = 30.0
_SHARED_SUFFIX = "-SHARED"


def with_blocks(context: Context) -> Context:
    """Set what holds the job back: as a whole, or the runs that have not ended."""
    queued, stalled = _of_runs(context)
    return replace(context, stalled=forbidden(context) or stalled, queued=queued)


def forbidden(context: Context) -> Blocker | None:
    """Why no pod of the job may be created, not even for recorded runs."""
    return next(_of_job(context), None)


def with_conditions(context: Context) -> Context:
    """Write what holds the job back into conditions and message, and schedule a retry."""
    context = _with_condition(context, "Queued", context.queued)
    context = _with_condition(context, "Stalled", context.stalled)
    return context.waking(AGAIN_SECONDS) if context.blocked else context


def _of_job(context: Context) -> Iterator[Blocker]:
    yield from context.observed.blockers
    if changed := changed_fields(context.job, context.status):
        yield Blocker(reasons.SPEC_CHANGED, spec_changed(changed))
    yield from _of_nodes(context)


def _of_nodes(context: Context) -> Iterator[Blocker]:
    """Nodes that may run the job must have one GPU product, so that it launches on the product it measured."""
    resources = context.job.spec.resources
    if resources.device != "cuda":
        return
    products = sorted({node.gpu_product for node in context.observed.nodes or () if node.gpu_product})
    wanted = resources.gpu_product or context.status.gpu_product
    if not wanted and not context.status.fixed and context.job.spec.tuning.chooses_product:
        blocker, wanted = _by_cost(context)
        if blocker:
            yield blocker
            return
    # Once the job is under way its resources cannot change any more: the product of the node that it meets is kept.
    if len(products) > 1 and not wanted and not context.status.fixed:
        listed = ", ".join(products)
        text = f"the nodes that may run the job have different GPUs: {listed}; name one in resources.gpuProduct"
        predicted = compared(context)
        text += f" (predicted: {predicted})" if predicted else ""
        yield Blocker(reasons.MIXED_GPUS, text)
    shared = [each for each in ([wanted] if wanted else products) if each.upper().endswith(_SHARED_SUFFIX)]
    if shared and not resources.memory_share:
        text = f"{shared[0]} is time-sliced: the memory that others take cannot be predicted; set resources.memoryShare"
        yield Blocker(reasons.SHARED_GPUS, text)


def _by_cost(context: Context) -> tuple[Blocker | None, str]:
    """Why no product can be chosen by its cost, or which one is."""
    try:
        offer = cheapest(context)
        return (None, offer.product) if offer else (Blocker(reasons.COST_UNKNOWN, unknown_cost(context)), "")
    except (ValueError, ArithmeticError) as error:
        return Blocker(reasons.MODEL_UNKNOWN, str(error)), ""


def _of_runs(context: Context) -> tuple[Blocker | None, Blocker | None]:
    """The reasons why unfinished runs wait: a queue, and anything else."""
    queued = stalled = None
    trace = context.status.trace
    traced = [trace] if trace and not has_ended(trace) else []
    for record in (*traced, *live(context.status)):
        run = context.runs[record.name]
        found = waits(run)
        if found is None:
            continue
        message = found.message
        if isinstance(record, RunStatus) and found.verdict is not Verdict.IMAGE_ERROR:
            message += _host_request_words(context, record)
        if isinstance(record, RunStatus) and found.verdict is Verdict.UNSCHEDULABLE and not run.rejection:
            message += _avoiding(context, record)
        if found.verdict is Verdict.QUEUED:
            queued = queued or Blocker(reasons.QUEUED, message)
        else:
            reason = reasons.IMAGE_PULL if found.verdict is Verdict.IMAGE_ERROR else reasons.UNSCHEDULABLE
            stalled = stalled or Blocker(reasons.REFUSED if run.rejection else reason, message)
    return queued, stalled


def _host_request_words(context: Context, record: RunStatus) -> str:
    """The host memory that pods request beyond their template: the node or the quota may not have it."""
    asked = asked_bytes(context, record)
    return f" (each pod asks for {gib(asked)} of host memory, for {record.plan})" if asked else ""


def _avoiding(context: Context, record: RunStatus) -> str:
    """For an unschedulable message: the nodes that the run avoids."""
    avoided = avoided_nodes(context, record)
    verb = "is" if len(avoided) == 1 else "are"
    return f" ({', '.join(avoided)} {verb} avoided, which took two attempts down)" if avoided else ""


def _with_condition(context: Context, kind: ConditionType, found: Blocker | None) -> Context:
    """Set the condition, and emit an event when its reason changes."""
    old = context.condition(kind)
    if found is None:
        if not context.holds(kind):
            return context
        return context.with_condition(kind, False, reasons.CLEARED, "nothing holds the job back")
    changed = context.with_condition(kind, True, found.reason, found.message)
    if old is None or (old.status, old.reason) != ("True", found.reason):
        changed = changed.telling("Normal" if kind == "Queued" else "Warning", found.reason, found.message)
    return changed.saying(f"{kind.lower()}: {found.message}")
