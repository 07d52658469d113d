"""`Predictor`: what a plan of a workload needs on one rank, and why."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memtune.gpus.driver_overhead import expected_overhead
from memtune.memory.constants import DEFAULT_CONSTANTS, Constants
from memtune.memory.formulas.activations import activation_terms
from memtune.memory.formulas.logits_and_buffers import (
    buffer_terms,
    building_terms,
    bytes_behind,
    evaluation_terms,
    loss_blocks,
    save_terms,
)
from memtune.memory.formulas.packing import (
    NEEDS,
    PACKINGS,
    LossBlocks,
    Packing,
    largest_tensors,
    packing_class,
    replayed,
)
from memtune.memory.formulas.phases import Ledger, Peaks, ledger, peaks, sensitivities
from memtune.memory.formulas.recipe import Recipe, lower
from memtune.memory.formulas.shape import Shape, shape_of
from memtune.memory.formulas.states import driver_overhead_terms, state_terms, workspace_terms
from memtune.memory.formulas.terms import Term
from memtune.memory.measured_overhead import overhead_after
from memtune.memory.prediction import Belief, Interval, Prediction
from memtune.memory.speed import UNMEASURED, Pace, pace_of
from memtune.memory.speed_errors import SpeedErrors
from memtune.memory.workload import Evaluation, Workload
from memtune.plans.plan import Plan
from memtune.units import MIB

if TYPE_CHECKING:
    from memtune.memory.replay.replays import Footprint

# The relative error of an assumed model: it gives little more than the order of magnitude.
_ASSUMED = 4.0


@dataclass(frozen=True)
class Calibration:
    """The result of calibration: what is known of the errors of memory's components, and of step times if any is."""

    belief: Belief
    speed: SpeedErrors | None


class Predictor:
    """Predicts memory and speed of every plan of one workload."""

    def __init__(self, workload: Workload, calibration: Calibration | None = None) -> None:
        self.workload = workload
        self.shape = shape_of(workload.model, workload.adapter)
        self.belief = calibration.belief if calibration else _prior(workload)
        self.speed = calibration.speed if calibration else None
        self._ledgers: dict[tuple[bool, int, tuple[object, ...]], Ledger] = {}
        self._paces: dict[tuple[object, ...], Pace] = {}
        self._predictions: dict[Plan, Prediction] = {}

    def predict(self, plan: Plan) -> Prediction:
        """The peaks of a plan by phase and component, and its speed."""
        if (known := self._predictions.get(plan)) is None:
            known = self._predictions[plan] = self._predicted(plan)
        return known

    def _predicted(self, plan: Plan) -> Prediction:
        found = peaks(self._ledger(plan), plan.micro_batch)
        parts = self.step_parts(plan)
        plain = sum(parts.values())
        low, expected, high = self.speed.factor(plan, parts) if self.speed else UNMEASURED
        seconds = Interval(plain * low, plain * expected, plain * high)
        tokens = plan.global_batch(self.workload.world) * self.workload.sequence_length
        return Prediction(
            peak_phase=found.phase,
            phase_breakdown=found.phase_breakdown,
            breakdown=found.breakdown,
            requested=found.requested,
            allocated=found.allocated,
            active=found.allocated,
            reserved=found.reserved,
            device=found.device,
            needed=found.needed,
            step_seconds=seconds,
            tokens_per_second=Interval(tokens / seconds.upper, tokens / seconds.expected, tokens / seconds.lower),
            job_width_bytes=found.job_width_bytes,
        )

    def step_parts(self, plan: Plan) -> dict[str, float]:
        """The seconds of a plan's step by what takes them, as the formulas say."""
        return self._pace(plan).parts(plan.micro_batch, plan.accumulation)

    def explain(self, plan: Plan) -> list[Term]:
        """Every term of a plan with its formula: the same terms that ``predict`` sums."""
        return self._terms(plan, lower(self.workload, plan))

    def sensitivities(self, plan: Plan, metric: str) -> dict[str, float]:
        """The change in bytes of a plan's metric per unit of each component's relative error."""
        return sensitivities(self._ledger(plan), plan.micro_batch, metric)

    def unsure_bytes(self, plan: Plan) -> float:
        """How far partly filled segments may move a plan's reserved bytes, also after measurements."""
        sums = self._ledger(plan)
        totals = sums.totals(plan.micro_batch)
        return sums.reserved(totals.index(max(totals)), plan.micro_batch).unsure

    def bytes_behind(self, plan: Plan) -> float:
        """The most bytes that a GPU behind its CPU has beyond an emulated peak of the plan: released weights."""
        recipe = lower(self.workload, plan)
        # The terms of most plans are not asked for.
        return bytes_behind(self.shape, recipe, self._terms(plan, recipe)) if recipe.is_stage_3 else 0.0

    def _ledger(self, plan: Plan) -> Ledger:
        # Gradients live through the forward pass only if they accumulate, so a family has two ledgers. The effect of
        # max_split_size depends on tensor sizes, so each batch has its own; so has each batch of a replayed trace.
        is_alone = plan.max_split_size_mib or self.workload.traced
        key = plan.accumulation > 1, plan.micro_batch if is_alone else 0, plan.family
        found = self._ledgers.get(key)
        if found is None:
            recipe = lower(self.workload, plan)
            terms = self._terms(plan, recipe)
            packed = self._packing(plan, recipe, terms)
            # A replay does not say which segments of its peak it could return.
            needs = packed if self.workload.traced else NEEDS[packing_class(self.shape, recipe)]
            # A replay has placed every tensor of a traced model.
            largest = None if self.workload.traced else largest_tensors(self.shape, recipe)
            blocks = LossBlocks() if self.workload.traced else loss_blocks(self.shape, recipe)
            # A measured run had what is behind among its bytes; emulated and virtual GPUs are never behind.
            behind = bytes_behind(self.shape, recipe, terms) if self.belief.job_width else 0.0
            found = ledger(terms, recipe, DEFAULT_CONSTANTS, self.belief, largest, packed, needs, blocks, behind)
            self._ledgers[key] = found
        return found

    def _packing(self, plan: Plan, recipe: Recipe, terms: list[Term]) -> Packing:
        if self.workload.traced:
            return replayed(self._footprint(plan).packing)
        found = PACKINGS[packing_class(self.shape, recipe)]
        if not plan.max_split_size_mib:
            return found
        # Imported lazily: the allocator is a large part of the predictor's import time and rarely needed.
        from memtune.allocator import AllocatorSettings
        from memtune.memory.formulas.step_trace import packing, step_trace

        settings = AllocatorSettings(plan.expandable_segments, plan.max_split_size_mib * MIB)
        return found.times(packing(step_trace(self.shape, recipe, terms, DEFAULT_CONSTANTS), settings))

    def _pace(self, plan: Plan) -> Pace:
        found = self._paces.get(plan.family)
        if found is None:
            found = self._paces[plan.family] = pace_of(self.workload, self.shape, plan)
        return found

    def _footprint(self, plan: Plan) -> Footprint:
        # Imported only here and below: replays and the allocator are half of all modules, and few models are traced.
        from memtune.memory.replay.replays import replays_of

        workload = self.workload
        assert workload.traced
        return replays_of(workload.traced).footprint(
            plan, workload.nodes, workload.gpus_per_node, workload.without_reducer
        )

    def _terms(self, plan: Plan, recipe: Recipe) -> list[Term]:
        if self.workload.traced:
            outside = [*workspace_terms(recipe, DEFAULT_CONSTANTS), *driver_overhead_terms(recipe)]
            terms = [*self._traced_terms(plan, recipe), *outside]
            return terms + building_terms(self.shape, recipe, terms)
        return recipe_terms(self.shape, recipe, DEFAULT_CONSTANTS, self.workload.evaluation)

    def _traced_terms(self, plan: Plan, recipe: Recipe) -> list[Term]:
        from memtune.memory.replay.replays import evaluation_bytes
        from memtune.memory.replay.terms import traced_evaluation_terms, traced_save_terms, traced_terms

        footprint, evaluation, model = self._footprint(plan), self.workload.evaluation, self.workload.traced
        assert model
        terms = [*traced_terms(footprint), *traced_save_terms(footprint, self.shape, recipe)]
        if evaluation.batch_size:
            size = evaluation_bytes(model, plan, evaluation.batch_size, evaluation.keeps_logits)
            terms += traced_evaluation_terms(footprint, evaluation.batch_size, size)
        return terms


def _prior(workload: Workload) -> Belief:
    # The published peaks behind the width of a job are of formulas, and of GPUs.
    knows_job = workload.traced or workload.virtual
    constants = replace(DEFAULT_CONSTANTS, job_width=0.0) if knows_job else DEFAULT_CONSTANTS
    belief = Belief.prior(constants, workload.in_transformers and not workload.traced)
    if workload.overhead_bytes:
        overhead = overhead_after(workload.overhead_bytes, workload.world)
        belief = belief.known(expected_overhead(workload.world), *overhead)
    return belief.doubted(_ASSUMED) if workload.assumed else belief


def recipe_terms(shape: Shape, recipe: Recipe, constants: Constants, evaluation: Evaluation) -> list[Term]:
    """Every term of a recipe, in reading order."""
    terms = [
        *state_terms(shape, recipe),
        *activation_terms(shape, recipe, constants),
        *buffer_terms(shape, recipe, constants),
        *evaluation_terms(shape, recipe, evaluation),
        *save_terms(shape, recipe),
        *workspace_terms(recipe, constants),
        *driver_overhead_terms(recipe),
    ]
    return terms + building_terms(shape, recipe, terms)


def predict_recipe(shape: Shape, recipe: Recipe, constants: Constants = DEFAULT_CONSTANTS) -> Peaks:
    """The peaks of a recipe without a plan, such as a published measurement of another framework."""
    belief = Belief.prior(constants, recipe.counts_layers)
    terms = recipe_terms(shape, recipe, constants, Evaluation())
    largest = largest_tensors(shape, recipe)
    packed, needs = (table[packing_class(shape, recipe)] for table in (PACKINGS, NEEDS))
    blocks, behind = loss_blocks(shape, recipe), bytes_behind(shape, recipe, terms)
    found = ledger(terms, recipe, constants, belief, largest, packed, needs, blocks, behind)
    return peaks(found, recipe.micro_batch)
