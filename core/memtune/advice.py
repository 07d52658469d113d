"""What would make a job fit that does not: knobs it does not allow, more GPUs, larger GPUs. In plain words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from memtune.gpu import GPUS
from memtune.ladder import RUNGS, Rung
from memtune.plan import Plan
from memtune.prediction import Prediction
from memtune.space import PredictsPlans, divisors, refusal
from memtune.trace import TraceError
from memtune.units import counted, gib
from memtune.workload import Workload

_MOST_GROWTH = 8
_ADVICE = {
    "allocator": "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    "buckets": "make DeepSpeed's buckets smaller",
    "checkpointing": "allow more in tuning.space.checkpointing",
    "micro-batch": "make the micro-batch smaller",
    "sharding": "allow more in tuning.space.zeroStages or fsdpStrategies",
    "offload": "allow more in tuning.space.offload",
    "optimizer-8bit": "consent to optimizer-8bit",
    "gradient-dtype": "consent to gradient-dtype",
    "precision": "consent to precision",
}


def advise(
    workload: Workload, predictor_for: Callable[[Workload], PredictsPlans], plan: Plan, headroom: float
) -> list[str]:
    """What would fit instead of ``plan``, the smallest that is allowed and does not; the least change first."""

    def fits(other: Workload, prediction: Prediction) -> bool:
        return prediction.fits(other.gpu.usable_bytes, headroom)

    predictor = predictor_for(workload)
    advice = [
        f"{_ADVICE[rung.name]}: {option} is predicted at {gib(prediction.device.expected)}"
        for rung in RUNGS
        for option, prediction in _first(workload, predictor, rung, plan, fits)
    ]
    for wider in _wider(workload):
        smaller = _on(wider, plan)
        prediction = predictor_for(wider).predict(smaller)
        if fits(wider, prediction):
            more = wider.world - workload.world
            gpus = f"{counted(more, 'more GPU')} of {gib(wider.gpu.usable_bytes)}"
            advice.append(f"add {gpus}: {smaller} is predicted at {gib(prediction.device.expected)}")
            break
    advice.append(_larger(workload, plan, predictor.predict(plan), headroom))
    return advice


def _first(
    workload: Workload,
    predictor: PredictsPlans,
    rung: Rung,
    plan: Plan,
    fits: Callable[[Workload, Prediction], bool],
) -> Iterator[tuple[Plan, Prediction]]:
    for option in rung.options(plan):
        try:
            prediction = predictor.predict(option)
        except TraceError:
            continue  # a trace knows only the ways of computing that the job allows
        if refusal(workload, option) is None and fits(workload, prediction):
            yield option, prediction
            return


def _wider(workload: Workload) -> Iterator[Workload]:
    """The same job on more GPUs, among which the global batch can still be divided: more per node up to 8, or nodes."""
    workload = replace(workload, outside_bytes=())  # measured on as many as there are now
    for world in divisors(workload.global_batch):
        if not workload.world < world <= workload.world * _MOST_GROWTH:
            continue
        if workload.nodes == 1 and world <= 8:
            yield replace(workload, gpus_per_node=world)
        elif world % workload.gpus_per_node == 0:
            yield replace(workload, nodes=world // workload.gpus_per_node)


def _on(workload: Workload, plan: Plan) -> Plan:
    samples = workload.samples_per_rank
    size = max(d for d in divisors(samples) if d <= plan.micro_batch)
    return replace(plan, micro_batch=size, accumulation=samples // size)


def _larger(workload: Workload, plan: Plan, prediction: Prediction, headroom: float) -> str:
    needed_bytes = max(prediction.device.upper, prediction.device.expected / (1 - headroom))
    able = [gpu for gpu in GPUS.values() if refusal(replace(workload, gpu=gpu), plan) is None]
    enough = [gpu for gpu in able if gpu.usable_bytes >= needed_bytes]
    example = f", such as {min(enough, key=lambda gpu: gpu.usable_bytes).name}" if enough else ""
    return f"use GPUs with at least {gib(needed_bytes)}{example}"
