"""Finds the checkpoint that the next attempt resumes from, and the plans that can read it."""

from __future__ import annotations

from typing import Literal, NamedTuple

from memtune.api.job import Job
from memtune.api.status import AttemptStatus, Status
from memtune.controller.records import newest_saved, of_training, plan_of
from memtune.plans.plan import Plan
from memtune.plans.resume import Format, Way, resumption


class Start(NamedTuple):
    """How an attempt starts under a plan: fresh, resumed, from a converted checkpoint; None if it must not."""

    resume: Literal["no", "direct", "convert"] | None
    samples: int = 0
    reason: str = ""


def start_under(job: Job, status: Status, plan: Plan) -> Start:
    """How the next attempt can start under a plan without losing earlier training."""
    if not any(record.trained for record in of_training(status)):
        return Start("no")
    if job.spec.checkpoint is None:
        return Start(None, reason="the job has no spec.checkpoint to resume from")
    source = _source(status)
    if source is None:
        # Every run reported that nothing was saved yet: there is nothing to keep.
        return Start("no")
    found = resumption(_format(job, source), plan_of(source), plan, same_world=True)
    if found.way is Way.IMPOSSIBLE:
        return Start(None, reason=found.reason)
    # A later attempt that could not report its checkpoint may have left a newer one.
    is_older = any(record.number > source.number for record in _with_unknown_checkpoint(status))
    samples = 0 if is_older else source.checkpoint_samples
    return Start("convert" if found.way is Way.CONVERT else "direct", samples)


def _source(status: Status) -> AttemptStatus | None:
    """The run with the newest checkpoint, as far as known."""
    unknown = _with_unknown_checkpoint(status)
    return newest_saved(status) or (unknown[-1] if unknown else None)


def _with_unknown_checkpoint(status: Status) -> list[AttemptStatus]:
    return [record for record in of_training(status) if record.checkpoint == "unknown"]


def _format(job: Job, source: AttemptStatus) -> Format:
    """The reported format, else the one that the integration writes under this plan."""
    if source.checkpoint_format in {each.value for each in Format}:
        return Format(source.checkpoint_format)
    if job.spec.integration in ("hf-trainer", "accelerate", "lightning"):
        return Format(job.spec.integration)
    if job.spec.integration == "env" and job.spec.template is not None:
        return Format.SCRIPT
    return Format.DEEPSPEED if plan_of(source).sharding.backend == "deepspeed" else Format.DCP
