"""Phase Running: the attempt goes on, and its success completes the job."""

from __future__ import annotations

from memtune.api import reasons
from memtune.api.status import PlanStatus
from memtune.controller.context import Context
from memtune.controller.job_end import completed
from memtune.controller.messages import inherited, measured, otherwise_trained, replaced_batch, trained, warning
from memtune.controller.records import has_ended, last_attempt
from memtune.units import over


def running(context: Context) -> Context:
    """Wait while the attempt goes on; its success is the job's."""
    last = last_attempt(context.status)
    if last is None or not has_ended(last):
        number, plan = (last.number, last.plan) if last else (0, "")
        doing = "running emulated" if last and last.emulated else "training"
        return context.saying(f"attempt {number} is {doing} on {plan}")
    emulated = "has run to its end on an emulated GPU, no model was trained"
    did = emulated if last.emulated else trained(context.status)
    text = f"attempt {last.number} on {last.plan} {did}{inherited(last)}"
    if peaks := last.peak_bytes:
        hbm, prediction = over(peaks.device, peaks.total), context.status.prediction
        speed = prediction.tokens_per_second if last.emulated and prediction else last.tokens_per_second
        context = context.having(plan=PlanStatus(name=last.plan, hbm=hbm, tokens_per_second=speed))
        text = f"{text}, {measured(last)}"
    warnings = (otherwise_trained(context.status), replaced_batch(context.status, context.job), warning(last))
    return completed(context, reasons.SUCCEEDED, text, *warnings)
