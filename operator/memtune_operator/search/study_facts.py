"""The facts of a study's job, a comparison with those of an earlier study, and the message that nothing fits."""

from __future__ import annotations

from typing import Any

from memtune.model.architecture import Architecture
from memtune.model.count import parameters
from memtune.planning.advice import advise
from memtune.planning.knowledge import PlanKnowledge


def facts_of(knowledge: PlanKnowledge) -> dict[str, Any]:
    """The facts that a study's measurements depend on, as JSON values. Headroom is not one of them."""
    workload = knowledge.workload
    model, adapter = workload.model, workload.adapter
    return {
        "model": model.name,
        "parameters": parameters(model).total if isinstance(model, Architecture) else model.digest,
        "adapter": f"{adapter.rank} {adapter.base_quantization} {' '.join(adapter.targets)}" if adapter else "none",
        "sequence length": workload.sequence_length,
        "varying lengths": workload.varying_lengths,
        "global batch": workload.global_batch,
        "GPU": workload.gpu.name,
        "GPU bytes": workload.gpu.usable_bytes,
        "GPUs": workload.world,
        "objective": knowledge.objective,
    }


def difference(earlier: dict[str, Any], knowledge: PlanKnowledge) -> str:
    """How a job differs from that of an earlier study; empty if the study may continue with it."""
    now = facts_of(knowledge)
    changed = [
        f"{name} {earlier[name]}, now {value}" for name, value in now.items() if earlier.get(name, value) != value
    ]
    return ", ".join(changed)


def nothing_fits(knowledge: PlanKnowledge) -> str:
    """The message that no remaining plan can fit, with advice."""
    smallest = knowledge.smallest()
    if smallest is None:
        return "the job's tuning.space allows no plan"
    dropped = next((each.reason for each in knowledge.ranking.dropped if each.plan == smallest), "")
    why = f"No plan fits: {smallest} {dropped}" if dropped else "No plan that was tried fits, and none is left"
    advice = advise(knowledge.workload, knowledge.predictor_for, smallest, knowledge.headroom, knowledge.space)
    return f"{why}. What would help: {'; or '.join(advice)}" if advice else why
