"""The plan after an out-of-memory: the fastest that the recalibrated model accepts and the checkpoint can go on under."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

from memtune.decide.context import Context
from memtune.decide.model import Model
from memtune.decide.records import plan_of
from memtune.decide.resuming import start_under
from memtune.host import host_memory
from memtune.knobs import Offload
from memtune.ladder import Downgrade, Failure, OutOfMemory, descend
from memtune.plan import Plan
from memtune.space import Space
from memtune.spec.status import AttemptStatus

_RUNG_OF = {
    "expandable_segments": "allocator",
    "fused_optimizer": "allocator",
    "max_split_size_mib": "allocator",
    "bucket_elements": "buckets",
    "checkpointing": "checkpointing",
    "micro_batch": "micro-batch",
    "sharding": "sharding",
    "offload": "offload",
    "optimizer": "optimizer-8bit",
    "gradient_dtype": "gradient-dtype",
    "precision": "precision",
}
# What a relaunch may change only with consent; the others keep the numerics of training as they are.
_NUMERICS = ("precision", "optimizer", "gradient_dtype", "attention", "fused_loss")
# A pod that died of host memory asks for so much more next time.
_MORE_HOST = 1.5
_MOST_HOST = 4.0


@dataclass(frozen=True)
class Next:
    """What to relaunch with after an out-of-memory."""

    plan: Plan
    rung: str
    evaluation_batch: int = 0
    sharded_save: bool = False
    host_request_bytes: int = 0


def after_device_oom(context: Context, model: Model, last: AttemptStatus, resumable_only: bool = True) -> Next | None:
    """The next plan after the GPU's memory ran out; None if no allowed plan is small enough."""
    kind = OutOfMemory(last.out_of_memory or "activation")
    if kind is OutOfMemory.SAVING and last.sharded_save:
        kind = OutOfMemory.ACTIVATION
    return _least_change(context, model, last, kind) or _smaller(context, model, last, kind, resumable_only)


def _least_change(context: Context, model: Model, last: AttemptStatus, kind: OutOfMemory) -> Next | None:
    """An evaluation or a save that died leaves the plan as it is, as long as it can give way itself."""
    plan = plan_of(last)
    if kind is OutOfMemory.SAVING:
        return Next(plan, "sharded-save", last.evaluation_batch, True, last.host_request_bytes)
    if kind is not OutOfMemory.EVALUATION:
        return None
    workload, smaller = model.workload, last.evaluation_batch
    if smaller:
        workload = _with_evaluation(model, smaller)
    found = descend(workload, model.predictor, plan, Failure(kind, 0.0))
    if isinstance(found, Downgrade) and found.evaluation_batch:
        return Next(plan, found.rungs[0], found.evaluation_batch, last.sharded_save, last.host_request_bytes)
    return None
