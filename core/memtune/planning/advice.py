"""Advice for a job that does not fit: other knobs, shorter sequences, adapters, more or larger GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from memtune.gpus.gpu import GPUS
from memtune.memory.host_memory import predicted_host
from memtune.memory.prediction import Prediction, PredictsPlans
from memtune.memory.workload import Workload
from memtune.model.architecture import Adapter, Architecture
from memtune.model.count import adapter_parameters
from memtune.planning.ladder import RUNG_OF, RUNGS, Rung
from memtune.planning.space import Space, divisors, host_refusal, refusal
from memtune.plans.knobs import Offload, Sharding
from memtune.plans.plan import Plan
from memtune.units import amount, counted, gib
from memtune.wire.trace import TraceError
from memtune.words import camel

_MOST_GROWTH = 8
_NODE = 8
_SHORTEST = 512
_ADAPTERS = (Adapter(16, ("q_proj", "v_proj")), Adapter(16, ("q_proj", "v_proj"), "nf4"))
_CHOICES = {"precision": "precisions", "checkpointing": "checkpointings", "offload": "offloads"}
_OPENED = {**_CHOICES, "optimizer": "optimizers"}
_OF_TRAINING = ("optimizer", "gradient_dtype")
# Rungs whose knobs have no job field.
_FIXED_RUNGS = ("allocator", "buckets")
_FIXED_ALONE = tuple(knob for knob, rung in RUNG_OF.items() if rung in _FIXED_RUNGS)


def advise(
    workload: Workload,
    predictor_for: Callable[[Workload], PredictsPlans],
    plan: Plan,
    headroom: float,
    space: Space,
    is_fixed: bool = False,
    phase: str = "",
) -> list[str]:
    """Changes that would fit instead of ``plan``, the smallest of the space, which does not; the smallest change first.

    ``is_fixed`` says that the job launches this plan regardless of its space. ``phase`` is where memory ran out, if not
    in training: only changes that save memory there are suggested.
    """
    predictor = predictor_for(workload)
    if host_refusal(workload, predictor, plan) is None:
        return _Advice(workload, predictor_for, plan, headroom, space, is_fixed, phase).sentences()
    # Also advise for the plan without its offload, which may be the only obstacle.
    bare = _Advice(workload, predictor_for, replace(plan, offload=Offload.NONE), headroom, space, is_fixed)
    return [*_more_host(workload, predictor, plan), *bare.without_offload()]


def _more_host(workload: Workload, predictor: PredictsPlans, plan: Plan) -> list[str]:
    """More host memory, for a plan that fits its GPU."""
    if predictor.predict(plan).cannot_fit(workload.gpu.usable_bytes):
        return []
    needed_bytes = predicted_host(workload, predictor, plan).required_bytes
    return [f"raise limits.memory of the template to {gib(needed_bytes)}, which {plan} is predicted to need"]


@dataclass(frozen=True)
class _Advice:
    workload: Workload
    predictor_for: Callable[[Workload], PredictsPlans]
    plan: Plan
    headroom: float
    space: Space
    is_fixed: bool
    phase: str = ""

    def sentences(self) -> list[str]:
        found = [*self._other_knobs(), *self._shorter(), *self._adapters(), *self._more_gpus(), *self._larger_gpu()]
        return found or [*self._shorter_and_lower()] or [self._nothing()]

    def without_offload(self) -> list[str]:
        """Advice if the job may not offload what its plan offloads."""
        predictor = self.predictor_for(self.workload)
        if not self._is_likely_to_fit(self.workload, predictor, self.plan):
            return self.sentences()
        what = "set tuning.plan to this" if self.is_fixed else "allow none in tuning.space.offload"
        return [self._suggestion(what, self.workload, predictor, self.plan)]

    def _nothing(self) -> str:
        needed = self._amount(self._needed_bytes())
        return (
            f"no GPU that is known here has the {needed} that {self.plan} needs; take a smaller model or shorter "
            "sequences, or more GPUs with a training.globalBatchSize that they divide"
        )

    def _other_knobs(self) -> Iterator[str]:
        """Single knobs that would be enough, one of each kind; else all of them together."""
        predictor = self.predictor_for(self.workload)
        enough: dict[str, Plan] = {}
        for rung in RUNGS:
            options = self._options(predictor, rung, self.plan)
            # Everything that the space allows was found too large, even where predictions say otherwise.
            useful = (each for each in options if self._changes(each) and self._helps(self.workload, predictor, each))
            fitting = next(useful, None)
            if fitting:
                enough.setdefault(rung.name, fitting)
        together = [self._lowest] if not enough and self._helps(self.workload, predictor, self._lowest) else []
        for plan in (*enough.values(), *together):
            if changes := self._changes(plan):
                yield self._suggestion(changes, self.workload, predictor, plan)

    @cached_property
    def _lowest(self) -> Plan:
        """The bottom of the ladder, without rungs that no job field allows."""
        predictor, lowest, before = self.predictor_for(self.workload), self.plan, None
        while lowest != before:
            before = lowest
            for rung in (rung for rung in RUNGS if rung.name not in _FIXED_RUNGS):
                options = [lowest, *self._options(predictor, rung, lowest)]
                lowest = min(options, key=lambda option: predictor.predict(option).device.upper)
        return lowest

    def _options(self, predictor: PredictsPlans, rung: Rung, plan: Plan) -> Iterator[Plan]:
        for option in rung.options(plan):
            try:
                predictor.predict(option)
            except TraceError:
                continue  # a trace only covers the numerics that the job allows
            if refusal(self.workload, option) is None:
                yield option

    def _changes(self, option: Plan) -> str:
        """The fields of the job that would allow a plan."""
        is_open = "optimizer" in self.space.opened and not self.is_fixed
        set_fields = [
            f"set training.{camel(knob)} to {getattr(option, knob)}"
            for knob in _OF_TRAINING
            if getattr(option, knob) != getattr(self.plan, knob) and not (is_open and knob == "optimizer")
        ]
        if self.is_fixed or any(getattr(option, knob) != getattr(self.plan, knob) for knob in _FIXED_ALONE):
            mode = "" if self.is_fixed else "tuning.mode to Fixed and "
            return " and ".join([*set_fields, f"set {mode}tuning.plan to this"])
        allowed = [
            f"{getattr(option, knob)} in tuning.space.{knob}"
            for knob, choices in (_OPENED if is_open else _CHOICES).items()
            if getattr(option, knob) not in getattr(self.space, choices)
        ]
        if option.sharding not in self.space.shardings:
            allowed.append(f"sharding {option.sharding} in tuning.space.{self._sharding_field(option.sharding)}")
        sizes = self.space.micro_batches
        if sizes and option.micro_batch not in sizes:
            allowed.append(f"{option.micro_batch} in tuning.space.microBatch")
        return " and ".join([*set_fields, *([f"allow {' and '.join(allowed)}"] if allowed else [])])

    def _sharding_field(self, sharding: Sharding) -> str:
        if sharding.backend not in {known.backend for known in self.space.shardings}:
            return "backends"
        return "zeroStages" if sharding.backend == "deepspeed" else "fsdpStrategies"

    def _shorter(self) -> Iterator[str]:
        """The longest sequences that would fit, trying half the length and a quarter."""
        for shorter in self._half_as_long():
            predictor = self.predictor_for(shorter)
            plan = self._smallest(shorter, predictor)
            if self._helps(shorter, predictor, plan):
                yield self._suggestion(_shorten(shorter), shorter, predictor, plan)
                return

    def _shorter_and_lower(self) -> Iterator[str]:
        """The same, with everything that the user may still allow."""
        for shorter in self._half_as_long():
            if self._helps(shorter, predictor := self.predictor_for(shorter), self._lowest):
                what = filter(None, (_shorten(shorter), self._changes(self._lowest)))
                yield self._suggestion(" and ".join(what), shorter, predictor, self._lowest)
                return

    def _half_as_long(self) -> Iterator[Workload]:
        length = self.workload.sequence_length // 2
        while not self.workload.traced and length >= _SHORTEST:
            yield replace(self.workload, sequence_length=length)
            length //= 2

    def _adapters(self) -> Iterator[str]:
        """The largest base that would fit if only adapters were trained."""
        model = self.workload.model
        if self.workload.adapter or not isinstance(model, Architecture):
            return
        for adapter in _ADAPTERS:
            try:
                adapter_parameters(model, adapter)
            except ValueError:
                return  # its linear layers have other names
            light = replace(self.workload, adapter=adapter)
            predictor = self.predictor_for(light)
            plan = self._smallest(light, predictor)
            quantized = adapter.base_quantization != "none"
            # Few libraries can shard a quantized base.
            if self._helps(light, predictor, plan) and not (quantized and plan.sharding.zero_stage == 3):
                on = f" with baseQuantization {adapter.base_quantization}" if quantized else ""
                what = f"if the model is pretrained, train LoRA adapters alone (model.peft{on}, in a template)"
                yield self._suggestion(what, light, predictor, plan)
                return

    def _more_gpus(self) -> Iterator[str]:
        for wider in _wider(self.workload):
            if not self._sizes(wider):
                continue  # the script's own micro-batch is too large for a GPU's share
            predictor = self.predictor_for(wider)
            plan = self._smallest(wider, predictor)
            if self._helps(wider, predictor, plan):
                nodes = f", {wider.gpus_per_node} on each of {wider.nodes} nodes" if wider.nodes > 1 else ""
                what = f"use {counted(wider.world, 'GPU')} in place of {self.workload.world}{nodes}"
                yield self._suggestion(what, wider, predictor, plan)
                return

    def _smallest(self, workload: Workload, predictor: PredictsPlans) -> Plan:
        """The smallest plan for another workload among those that the job allows."""
        plans = [self._on(workload, plan) for plan in (self.plan, *self._bare_plans(workload))]
        return min(plans, key=lambda plan: predictor.predict(plan).device.upper)

    def _on(self, workload: Workload, plan: Plan) -> Plan:
        sizes = self._sizes(workload)
        # The plan may be below every micro-batch of the space.
        size = sizes[-1] if sizes else plan.micro_batch
        return plan.with_batch(size, workload.samples_per_rank // size)

    def _sizes(self, workload: Workload) -> list[int]:
        """The micro-batches of the space up to the plan's, smallest first."""
        sizes = divisors if self.is_fixed else self.space.sizes
        return [size for size in sizes(workload.samples_per_rank) if size <= self.plan.micro_batch]

    def _bare_plans(self, workload: Workload) -> list[Plan]:
        if self.is_fixed or workload.traced:
            return []  # each plan of a trace is a replay
        plans = (plan.with_batch(self.plan.micro_batch, self.plan.accumulation) for plan in self.space.bare_plans())
        return [plan for plan in plans if refusal(workload, plan) is None]

    def _larger_gpu(self) -> Iterator[str]:
        needed_bytes = self._needed_bytes()
        if self.workload.virtual:
            yield f"set resources.gpuMemory to at least {self._amount(needed_bytes)}"
            return
        able = [gpu for gpu in GPUS.values() if refusal(replace(self.workload, gpu=gpu), self.plan) is None]
        # Measurements may have ruled out what is predicted to fit: a smaller GPU never helps.
        own_bytes = self.workload.gpu.usable_bytes
        enough = [gpu for gpu in able if gpu.usable_bytes >= max(needed_bytes, own_bytes + 1)]
        if enough:
            smallest = min(enough, key=lambda gpu: gpu.usable_bytes)
            needed = f"GPUs with at least {self._amount(needed_bytes)}" if needed_bytes > own_bytes else "larger GPUs"
            yield f"use {needed}, such as {smallest.name}"

    def _needed_bytes(self) -> float:
        return self.predictor_for(self.workload).predict(self.plan).needed.expected / (1 - self.headroom)

    def _helps(self, workload: Workload, predictor: PredictsPlans, plan: Plan) -> bool:
        """Whether a plan is likely to fit and takes less than the current one, whose prediction may be wrong."""
        own = self.predictor_for(self.workload).predict(self.plan)
        return self._is_likely_to_fit(workload, predictor, plan) and self._bytes(predictor.predict(plan)) < self._bytes(
            own
        )

    def _bytes(self, prediction: Prediction) -> float:
        return (prediction.phases[self.phase] if self.phase else prediction.device).expected

    def _is_likely_to_fit(self, workload: Workload, predictor: PredictsPlans, plan: Plan) -> bool:
        # To be sure would be too much to ask: of a job of which nothing was measured, few plans are.
        likely = predictor.predict(plan).needed.expected <= workload.gpu.usable_bytes * (1 - self.headroom)
        return likely and host_refusal(workload, predictor, plan) is None

    def _suggestion(self, what: str, workload: Workload, predictor: PredictsPlans, plan: Plan) -> str:
        taken = f"{plan} is predicted to take {self._amount(predictor.predict(plan).device.expected)} of each GPU"
        if plan.offload in (Offload.NONE, Offload.ACTIVATIONS):
            return f"{what}: {taken}"
        host = gib(predicted_host(workload, predictor, plan).required_bytes)
        return f"{what}: {taken} and {host} of host memory on each node"

    def _amount(self, size_bytes: float) -> str:
        return amount(size_bytes, self.workload.gpu.usable_bytes)


def _wider(workload: Workload) -> Iterator[Workload]:
    """The same job on more GPUs that still divide its batch: up to 8 on its node, or more nodes."""
    workload = replace(workload, overhead_bytes=())  # measured on the current number of GPUs
    of_node = workload.gpus_per_node if workload.world > 1 else _NODE
    for world in divisors(workload.global_batch):
        if not workload.world < world <= max(workload.world, _NODE) * _MOST_GROWTH:
            continue
        if workload.nodes == 1 and world <= _NODE:
            yield replace(workload, gpus_per_node=world)
        elif world % of_node == 0:
            yield replace(workload, nodes=world // of_node, gpus_per_node=of_node)


def _shorten(workload: Workload) -> str:
    return f"shorten training.sequenceLength to {workload.sequence_length:,}"
