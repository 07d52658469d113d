"""Modelled tables of every plan's memory and speed, for `search.py`: a truth that differs from predictions.

Each table is the prediction times hidden factors, drawn anew for each seed. No method sees them; a probe shows a plan's
row with a little noise. Factors of the whole job spread as published measurements do around the prediction:
bench/results/accuracy.md (memory: median 6%, 90th percentile 20%), bench/results/throughput.md (speed: median 5%).
Those that differ between plans of one job are assumed; nobody published enough plans of one job to fit them.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from functools import cached_property
from random import Random
from typing import NamedTuple

from step_times import durations

from memtune.api.tuning import Tuning
from memtune.controller.budget import ENDING_SECONDS, STARTUP_SECONDS
from memtune.gpus.gpu import find
from memtune.memory.prediction import Prediction
from memtune.memory.predictor import Predictor
from memtune.memory.workload import Workload
from memtune.model.architecture import Architecture, Kind
from memtune.planning.knowledge import Lesson, PlanKnowledge
from memtune.planning.space import THROUGHPUT, Space, enumerate_plans, rank
from memtune.plans.plan import Plan
from memtune.wire.probe_pruning import NOTHING, STEADY_STEPS, Step, Target, pruned, steady

HEADROOM = Tuning().headroom_ratio
# A plan is good from this share of the best throughput on.
GOOD = 0.97
# Standard deviations of the logarithms of the hidden factors.
_MEMORY_SPREAD = 0.08  # of all plans alike
_COMPONENT_SPREAD = 0.10  # of each component of the memory
_MEMORY_OWN = 0.015  # of each plan
_SPEED_SPREAD = 0.15  # of all plans alike
_KNOB_SPREAD = 0.06  # of each sharding and of each checkpointing
_SPEED_OWN = 0.03  # of each plan
# The difference between two probes of one plan.
_MEMORY_NOISE = 0.003
_SPEED_NOISE = 0.015
_DRAWS = 100


class Case(NamedTuple):
    """A job: its size in words, and the workload."""

    size: str
    workload: Workload


def _case(size: str, gpu: str, nodes: int, gpus: int, batch: int, length: int, *facts: int) -> Case:
    hidden, layers, heads, kv_heads, ffn, vocabulary = facts
    architecture = Architecture(
        size, Kind.DECODER, hidden, layers, heads, kv_heads, hidden // heads, ffn, vocabulary, rms_norm=True
    )
    return Case(size, Workload(architecture, find(gpu), batch, length, nodes, gpus))


# Sizes: GPT-2 small and large, Llama 3.2 1B and 3B, Llama 2 7B and 13B, Llama 3 8B, Yi 34B, Llama 3 70B and, on few
# GPUs, Qwen 2.5 1.5B; all with a Llama's layers.
CASES = (
    _case("0.1B", "a10-24gb", 1, 1, 64, 1024, 768, 12, 12, 12, 3072, 50257),
    _case("0.8B", "a100-40gb", 1, 1, 64, 1024, 1280, 36, 20, 20, 5120, 50257),
    _case("1B", "rtx4090-24gb", 1, 2, 64, 2048, 2048, 16, 32, 8, 8192, 128256),
    _case("1.5B", "l4-24gb", 1, 4, 96, 2048, 1536, 28, 12, 2, 8960, 151936),
    _case("3B", "a100-40gb", 1, 4, 128, 2048, 3072, 28, 24, 8, 8192, 128256),
    _case("7B", "a100-80gb", 1, 8, 256, 2048, 4096, 32, 32, 32, 11008, 32000),
    _case("8B", "h100-80gb", 1, 8, 256, 4096, 4096, 32, 32, 8, 14336, 128256),
    _case("13B", "a100-80gb", 2, 8, 512, 2048, 5120, 40, 40, 40, 13824, 32000),
    _case("34B", "h100-80gb", 4, 8, 768, 4096, 7168, 60, 56, 8, 20480, 64000),
    _case("70B", "h100-80gb", 8, 8, 1024, 4096, 8192, 80, 64, 8, 28672, 128256),
)


class Outcome(NamedTuple):
    """The measurement of a plan's probe. ``demanded_bytes`` is set if it ran out of memory, the rest if it did not.

    ``fits`` says whether it kept its headroom.
    """

    died: bool
    fits: bool = False
    allocated_bytes: int = 0
    reserved_bytes: int = 0
    device_bytes: int = 0
    step_seconds: float = 0.0
    tokens_per_second: float = 0.0
    demanded_bytes: int = 0
    gpu_seconds: float = 0.0
    steps: int = 0


@dataclass
class Hidden:
    """The factors between prediction and truth, each drawn on first use. ``reach`` scales them all."""

    random: Random
    reach: float = 1.0
    drawn: dict[str, float] = field(default_factory=dict)

    def factor(self, name: str, spread: float) -> float:
        """The factor of this name, the same on every call."""
        if name not in self.drawn:
            self.drawn[name] = self.own(spread)
        return self.drawn[name]

    def own(self, spread: float) -> float:
        """A factor that nothing else shares."""
        return self.random.lognormvariate(0.0, self.reach * spread)

    def memory(self, prediction: Prediction) -> float:
        """True over predicted bytes of a plan."""
        parts = prediction.components
        total = sum(part.bytes.expected for part in parts)
        moved = sum(part.bytes.expected * self.factor(part.name, _COMPONENT_SPREAD) for part in parts) / total
        return moved * self.factor("memory", _MEMORY_SPREAD) * self.own(_MEMORY_OWN)

    def speed(self, plan: Plan) -> float:
        """True over predicted tokens per second of a plan."""
        knobs = str(plan.sharding), str(plan.checkpointing)
        alike = math.prod(self.factor(f"speed of {knob}", _KNOB_SPREAD) for knob in knobs)
        return alike * self.factor("speed", _SPEED_SPREAD) * self.own(_SPEED_OWN)


class Row(NamedTuple):
    """The truth of one plan: its memory peaks and its speed. One that ``died`` has neither.

    A value that a source does not state is 0.
    """

    device_bytes: float = 0.0
    tokens_per_second: float = 0.0
    allocated_bytes: float = 0.0
    reserved_bytes: float = 0.0
    died: bool = False


@dataclass(frozen=True)
class Table:
    """The truth of every plan of a job, and the plans that its prediction does not rule out (``possible``)."""

    workload: Workload
    rows: dict[Plan, Row]
    possible: tuple[Plan, ...]

    def knowledge(self, lessons: tuple[Lesson, ...]) -> PlanKnowledge:
        """MemTune's knowledge of the plans after these lessons."""
        return PlanKnowledge(self.workload, Space(), lessons, HEADROOM, THROUGHPUT)

    def fits(self, plan: Plan) -> bool:
        """Whether a plan truly keeps its headroom."""
        row = self.rows[plan]
        return not row.died and row.device_bytes <= self.workload.gpu.usable_bytes * (1 - HEADROOM)

    @cached_property
    def best(self) -> Plan:
        """The fastest plan that fits."""
        return max((plan for plan in self.rows if self.fits(plan)), key=lambda plan: self.rows[plan].tokens_per_second)

    def is_good(self, plan: Plan) -> bool:
        """Whether a plan fits and is nearly the fastest."""
        return self.fits(plan) and self.share(plan) >= GOOD

    def share(self, plan: Plan) -> float:
        """A plan's true throughput over the best one's."""
        return self.rows[plan].tokens_per_second / self.rows[self.best].tokens_per_second

    def probe(
        self,
        plan: Plan,
        random: Random,
        steps: int | None = None,
        target: Target = NOTHING,
        ends_early: bool = False,
    ) -> Outcome:
        """Run a plan: its result and its cost.

        Without ``steps`` the probe is steady. With them, its steps last as long as recorded ones do, and one that
        ``ends_early`` makes no more of them than the runner would.
        """
        row, usable_bytes = self.rows[plan], self.workload.gpu.usable_bytes
        tokens = self.workload.global_batch * self.workload.sequence_length
        if row.died or row.device_bytes > usable_bytes:
            # It dies in its first step, at some request before its peak, if that is known.
            missing = max(row.device_bytes - usable_bytes, 0)
            demanded = int(usable_bytes + missing * random.random()) if missing else 0
            return Outcome(True, demanded_bytes=demanded, gpu_seconds=self._cost(0.0))
        factor = random.lognormvariate(0.0, _MEMORY_NOISE)
        speed = row.tokens_per_second * random.lognormvariate(0.0, _SPEED_NOISE)
        device = min(int(row.device_bytes * factor), usable_bytes)
        seconds = tokens / speed
        each = [seconds] * (STEADY_STEPS - 1)
        if steps is not None:
            each = [seconds * ratio for ratio in durations(random, steps - 1)]
        if ends_early:
            each = _until_enough(each, tokens, device, target)
        return Outcome(
            died=False,
            fits=device <= usable_bytes * (1 - HEADROOM),
            allocated_bytes=int(row.allocated_bytes * factor),
            reserved_bytes=int(row.reserved_bytes * factor),
            device_bytes=device,
            step_seconds=statistics.median(each),
            tokens_per_second=tokens / statistics.median(each),
            # The first step is as long as the others here: what it loads and compiles is part of the start.
            gpu_seconds=self._cost((seconds + sum(each)) * _shortened(plan)),
            steps=len(each) + 1,
        )

    def _cost(self, seconds: float) -> float:
        return (STARTUP_SECONDS + seconds + ENDING_SECONDS) * self.workload.world


def _until_enough(seconds: list[float], tokens: int, device_bytes: int, target: Target) -> list[float]:
    """The steps that a probe makes behind its first, as `memtune_runner.rank.probe` decides."""
    seen = list[Step]()
    for each in seconds:
        seen.append(Step(tokens / each, device_bytes, each))
        if pruned(target, seen) or steady(seen):
            break
    return seconds[: len(seen)]


def _shortened(plan: Plan) -> float:
    """A probe's steps have at most two micro-batches."""
    return min(plan.accumulation, 2) / plan.accumulation


def table_of(workload: Workload, random: Random, reach: float = 1.0) -> Table:
    """Draw the truth of a job; ``reach`` scales its distance to the prediction, 1 as in published measurements."""
    predictor = Predictor(workload)
    plans = enumerate_plans(workload, Space())
    ranking = rank(workload, predictor, plans, HEADROOM)
    ruled_out = {dropped.plan for dropped in ranking.dropped}
    predictions = {plan: predictor.predict(plan) for plan in plans}
    for _ in range(_DRAWS):
        hidden = Hidden(random, reach)
        rows = {plan: _row(plan, prediction, hidden) for plan, prediction in predictions.items()}
        table = Table(workload, rows, tuple(plan for plan in plans if plan not in ruled_out))
        # If no plan fits there is nothing to find.
        if any(table.fits(plan) for plan in plans):
            return table
    raise ValueError(f"no plan of {workload.model.name} fits on {workload.world} x {workload.gpu.name}")


def _row(plan: Plan, prediction: Prediction, hidden: Hidden) -> Row:
    speed, factor = prediction.tokens_per_second.expected * hidden.speed(plan), hidden.memory(prediction)
    peaks = (prediction.device, prediction.allocated, prediction.reserved)
    device, allocated, reserved = (peak.expected * factor for peak in peaks)
    return Row(device, speed, allocated, reserved)
