"""How near predictions come to what was measured on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from accuracy import Scored
from accuracy_rows import Row
from gpu_pairs import Pair, workload

from memtune.gpu import Gpu
from memtune.plan import Plan
from memtune.predict.recipe import lower
from memtune.predict.shape import shape_of
from memtune.prediction import Prediction

Predict = Callable[[Pair], Prediction]


class Result(NamedTuple):
    """What a pair took; where it took nothing, whether the GPU ran out of memory, or what else was in the way."""

    pair: Pair
    allocated_bytes: int = 0
    reserved_bytes: int = 0
    device_bytes: int = 0
    step_seconds: float = 0.0
    ran_out: bool = False
    problem: str = ""


def scored(results: Iterable[Result], gpu: Gpu, predict: Predict) -> list[Scored]:
    """The pairs as the accuracy benchmark scores published peaks.

    One that ran out of memory takes more than the GPU has, nobody knows how much. Where that is above its upper bound,
    it is scored with what the GPU has, so that its error is at least the one that is told; elsewhere the prediction
    allowed for it, and there is nothing to score.
    """
    found = []
    for each in results:
        interval = predict(each.pair).device
        if each.device_bytes or is_beyond(each, gpu, predict):
            found.append(Scored(_row(each, gpu), interval))
    return found


def is_beyond(result: Result, gpu: Gpu, predict: Predict) -> bool:
    """Whether a pair ran out of memory that was predicted to suffice by its upper bound."""
    return result.ran_out and predict(result.pair).device.upper < gpu.usable_bytes


def _row(result: Result, gpu: Gpu) -> Row:
    pair, plan = result.pair, Plan.parse(result.pair.plan)
    asked = workload(pair, gpu)
    return Row(
        id=str(pair),
        source=plan.sharding.backend,
        family="alone" if pair.is_alone else f"rank 0 of {pair.world} (fake)",
        metric="device",
        quality="A",
        peak_bytes=gpu.usable_bytes if result.ran_out else result.device_bytes,
        shape=shape_of(asked.architecture, None),
        recipe=lower(asked, plan),
    )
