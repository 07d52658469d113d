"""The predictor: what a plan of a workload needs on one rank, and why."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memtune.plan import Plan
from memtune.predict.activations import activation_terms
from memtune.predict.belief import Belief
from memtune.predict.buffers import buffer_terms, evaluation_terms, save_terms
from memtune.predict.constants import DEFAULT_CONSTANTS, Constants
from memtune.predict.outside import outside_terms
from memtune.predict.phases import Ledger, Peaks, ledger, peaks, sensitivities
from memtune.predict.recipe import Recipe, lower
from memtune.predict.shape import Shape, shape_of
from memtune.predict.speed import TRUST, LinkSeconds, link_seconds, step_seconds
from memtune.predict.states import state_terms
from memtune.predict.terms import ALWAYS, Term
from memtune.prediction import Interval, Prediction
from memtune.workload import Evaluation, Workload

if TYPE_CHECKING:
    from memtune.calibrate import Calibration


class Predictor:
    """Predicts the memory and the speed of every plan of one workload."""

    def __init__(self, workload: Workload, calibration: Calibration | None = None) -> None:
        self.workload = workload
        self.shape = shape_of(workload.architecture, workload.adapter)
        self.belief = calibration.belief if calibration else Belief.prior(DEFAULT_CONSTANTS)
        self.speed = calibration.speed if calibration else Interval(1 / (1 + TRUST), 1.0, 1 + TRUST)
        self._ledgers: dict[tuple[object, ...], tuple[Ledger, LinkSeconds]] = {}

    def predict(self, plan: Plan) -> Prediction:
        """The peaks of a plan by phase and component, and its speed."""
        sums, links = self._ledger(plan)
        found = peaks(sums, plan.micro_batch, DEFAULT_CONSTANTS, self.belief)
        plain = step_seconds(self.workload, self.shape, plan, links)
        low, expected, high = self.speed
        seconds = Interval(plain * low, plain * expected, plain * high)
        tokens = plan.global_batch(self.workload.world) * self.workload.sequence_length
        return Prediction(
            peak_phase=found.phase,
            phase_bytes=found.phase_bytes,
            breakdown=found.breakdown,
            requested=found.requested,
            allocated=found.allocated,
            active=found.allocated,
            reserved=found.reserved,
            device=found.device,
            step_seconds=seconds,
            tokens_per_second=Interval(tokens / seconds.upper, tokens / seconds.expected, tokens / seconds.lower),
        )

    def explain(self, plan: Plan) -> list[Term]:
        """Every addend of a plan with its formula: the very addends that ``predict`` sums."""
        return self._terms(lower(self.workload, plan))

    def sensitivities(self, plan: Plan, metric: str) -> dict[str, float]:
        """How many bytes a metric of a plan moves for each relative error of a component."""
        return sensitivities(self._ledger(plan)[0], plan.micro_batch, metric, DEFAULT_CONSTANTS, self.belief)

    def _ledger(self, plan: Plan) -> tuple[Ledger, LinkSeconds]:
        key = (
            plan.precision,
            plan.sharding,
            plan.checkpointing,
            plan.accumulation > 1,
            plan.offload,
            plan.optimizer,
            plan.fused_optimizer,
            plan.gradient_dtype,
            plan.attention,
            plan.fused_loss,
            plan.bucket_elements,
            plan.expandable_segments,
        )
        found = self._ledgers.get(key)
        if found is None:
            recipe = lower(self.workload, plan)
            zero, one = (self._terms(replace(recipe, micro_batch=samples)) for samples in (0, 1))
            sums = ledger(zero, one, recipe, DEFAULT_CONSTANTS, self.belief)
            found = self._ledgers[key] = sums, link_seconds(self.workload, self.shape, plan)
        return found

    def _terms(self, recipe: Recipe) -> list[Term]:
        return recipe_terms(self.shape, recipe, DEFAULT_CONSTANTS, self.workload.evaluation)


def recipe_terms(shape: Shape, recipe: Recipe, constants: Constants, evaluation: Evaluation) -> list[Term]:
    """Every addend of a recipe, in the order in which a person would tell them."""
    workspace = constants.workspace_bytes
    return [
        *state_terms(shape, recipe),
        *activation_terms(shape, recipe, constants),
        *buffer_terms(shape, recipe, constants),
        *evaluation_terms(shape, recipe, evaluation),
        *save_terms(shape, recipe),
        Term("workspace", workspace, ALWAYS, "{:,.0f} B of cuBLAS workspace", (workspace,), "CublasHandlePool.cpp"),
        *outside_terms(recipe, constants),
    ]


def predict_recipe(shape: Shape, recipe: Recipe, constants: Constants = DEFAULT_CONSTANTS) -> Peaks:
    """The peaks of a recipe that no plan can name, such as a published measurement of another framework."""
    belief = Belief.prior(constants)
    zero, one = (
        recipe_terms(shape, replace(recipe, micro_batch=samples), constants, Evaluation()) for samples in (0, 1)
    )
    return peaks(ledger(zero, one, recipe, constants, belief), recipe.micro_batch, constants, belief)
