"""Accuracy of predictions on GPU measurements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from accuracy import Scored
from accuracy_rows import Row
from gpu_pairs import Pair, prediction, workload

from memtune.gpus.gpu import Gpu
from memtune.memory.calibration import Measurement, calibrate
from memtune.memory.formulas.recipe import lower
from memtune.memory.formulas.shape import shape_of
from memtune.memory.prediction import Prediction
from memtune.memory.traced_model import TracedModel
from memtune.plans.plan import Plan

Predict = Callable[[Pair], Prediction]
FORMULAS, TRACE = "formulas", "trace"
_PROBES = 2


class Result(NamedTuple):
    """The measurement of a pair, or an out-of-memory, or another reason for having none."""

    pair: Pair
    allocated_bytes: int = 0
    reserved_bytes: int = 0
    device_bytes: int = 0
    step_seconds: float = 0.0
    building_bytes: int = 0
    ran_out: bool = False
    problem: str = ""


def ways(gpu: Gpu, traces: Mapping[str, TracedModel]) -> dict[str, Predict]:
    """The predictors of a pair: formulas, and the trace of its model."""
    return {
        FORMULAS: lambda pair: prediction(pair, gpu),
        TRACE: lambda pair: prediction(pair, gpu, traces[pair.model]),
    }


def scored(results: Iterable[Result], gpu: Gpu, predict: Predict) -> list[Scored]:
    """The pairs as the accuracy benchmark scores published peaks.

    A pair that ran out of memory takes more than the GPU has, by an unknown amount. If that is above its upper bound,
    it is scored with the GPU's memory, so that its error is at least the one shown; otherwise the prediction allowed
    for it, and it is not scored.
    """
    found = []
    for each in results:
        interval = predict(each.pair).device
        if each.device_bytes or is_beyond(each, gpu, predict):
            found.append(Scored(_row(each, gpu), interval))
    return found


def after_probes(results: Sequence[Result], gpu: Gpu, traces: Mapping[str, TracedModel]) -> list[Scored]:
    """The pairs of each model, calibrated by two of them as a job's plans are by its probes, which are not scored.

    A job has one number of ranks: the probes are the first two listed of the model's most common one. Their lessons are
    also used for other numbers of ranks, as if a job got other GPUs.
    """
    found = []
    for model in dict.fromkeys(each.pair.model for each in results):
        own, traced = [each for each in results if each.pair.model == model], traces.get(model)
        probes = _probes(own)
        if len(probes) == _PROBES:
            learned = calibrate(workload(probes[0].pair, gpu, traced), [_measurement(each) for each in probes])
            rest = [each for each in own if each not in probes]
            found += scored(rest, gpu, partial(prediction, gpu=gpu, traced=traced, calibration=learned))
    return found


def _probes(results: Sequence[Result]) -> list[Result]:
    measured = [each for each in results if each.device_bytes]
    for world, _ in Counter(each.pair.world for each in measured).most_common(1):
        return [each for each in measured if each.pair.world == world][:_PROBES]
    return []


def _measurement(result: Result) -> Measurement:
    sizes = result.allocated_bytes, result.reserved_bytes, result.device_bytes
    return Measurement(Plan.parse(result.pair.plan), *sizes, step_seconds=result.step_seconds)


def is_beyond(result: Result, gpu: Gpu, predict: Predict) -> bool:
    """Whether a pair ran out of memory although its upper bound fits."""
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
        gpu_bytes=0,
        shape=shape_of(asked.model, None),
        recipe=lower(asked, plan),
    )
