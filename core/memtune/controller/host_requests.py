"""Host memory that the pods of a run ask for from the beginning: what goes there has to be there."""

from __future__ import annotations

from memtune.api.status import AttemptStatus, EmulationStatus, RunStatus
from memtune.api.trainer import trainer_memory
from memtune.controller.context import Context
from memtune.controller.job_knowledge import believed
from memtune.controller.predicting import natural
from memtune.controller.records import plan_of
from memtune.memory.host_memory import predicted_host
from memtune.planning.knowledge import PlanKnowledge
from memtune.plans.knobs import Offload
from memtune.plans.plan import Plan


def host_need(model: PlanKnowledge, plan: Plan, resume: str) -> int:
    """What a pod of a run is predicted to take of its host."""
    memory = predicted_host(model.workload, model.predictor, plan)
    return memory.converting_bytes if resume == "convert" else memory.required_bytes


def asked_bytes(context: Context, record: RunStatus) -> int:
    """What each pod of a recorded run asks for; 0 where that is what the template asks for."""
    # The record of a probe on GPUs does not say: its pods are made at once, so that what is predicted anew is the same.
    if isinstance(record, (AttemptStatus, EmulationStatus)):
        return record.host_request_bytes
    return host_request(context, plan_of(record))


def host_request(context: Context, plan: Plan, resume: str = "no") -> int:
    """What each pod of a new run under a plan asks for; 0 where that is what the template asks for.

    A plan that offloads asks for what it is predicted to take, within the template's limit. What any other takes is the
    script's own, which its user knows.
    """
    if plan.offload is Offload.NONE:
        return 0
    try:
        model = believed(context)
        needed = natural(host_need(model, plan, resume))
    except (ValueError, ArithmeticError):
        return 0  # mode Fixed launches what cannot be predicted, too
    own = trainer_memory(context.job)
    wanted = min(needed, own.limit_bytes or needed)
    return wanted if wanted > own.asked_bytes and not model.workload.assumed else 0
