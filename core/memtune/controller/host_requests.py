"""The host memory that the pods of a run request, so that offloaded states fit from the beginning."""

from __future__ import annotations

from memtune.api.container import trainer_memory
from memtune.api.status import AttemptStatus, EmulationStatus, RunStatus, natural
from memtune.controller.context import Context
from memtune.controller.job_knowledge import current_knowledge
from memtune.controller.records import plan_of
from memtune.memory.host_memory import predicted_host
from memtune.planning.knowledge import PlanKnowledge
from memtune.plans.knobs import Offload
from memtune.plans.plan import Plan


def host_need(knowledge: PlanKnowledge, plan: Plan, resume: str) -> int:
    """Predicted host memory of one pod of a run."""
    memory = predicted_host(knowledge.workload, knowledge.predictor, plan)
    return memory.converting_bytes if resume == "convert" else memory.required_bytes


def asked_bytes(context: Context, record: RunStatus) -> int:
    """The memory request of each pod of a recorded run; 0 to keep the template's."""
    # A probe's record does not store it: its pods are created at once, so the prediction is unchanged.
    if isinstance(record, (AttemptStatus, EmulationStatus)):
        return record.host_request_bytes
    return host_request(context, plan_of(record))


def host_request(context: Context, plan: Plan, resume: str = "no") -> int:
    """The memory request of each pod of a new run; 0 to keep the template's.

    A plan that offloads requests what it is predicted to take, within the template's limit. For other plans the script
    decides, and its user knows that amount.
    """
    if plan.offload is Offload.NONE:
        return 0
    try:
        knowledge = current_knowledge(context)
        needed = natural(host_need(knowledge, plan, resume))
    except (ValueError, ArithmeticError):
        return 0  # mode Fixed also launches what cannot be predicted
    own = trainer_memory(context.job)
    wanted = min(needed, own.limit_bytes or needed)
    return wanted if wanted > own.asked_bytes and not knowledge.workload.assumed else 0
