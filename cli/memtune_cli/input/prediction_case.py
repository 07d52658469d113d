"""PredictionCase: a job on one GPU with its predictions, as subcommands use it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from memtune.memory.prediction import Interval
from memtune.planning.cost import per_million_tokens
from memtune.plans.knobs import Offload
from memtune.plans.plan import Plan
from memtune.units import counted
from memtune_cli.errors import InputError

if TYPE_CHECKING:
    from memtune.api import Job
    from memtune.memory.host_memory import HostMemory
    from memtune.memory.prediction import Prediction
    from memtune.memory.predictor import Predictor
    from memtune.memory.workload import Workload
    from memtune.planning.space import Ranking, Space


@dataclass(frozen=True)
class PredictionCase:
    """A job and its predictions. ``notes`` lists the assumptions."""

    name: str
    job: Job
    workload: Workload
    space: Space
    headroom: float
    objective: str
    fixed: Plan | None = None
    gpu_hour_price: float | None = None
    notes: tuple[str, ...] = ()

    @cached_property
    def predictor(self) -> Predictor:
        """The predictor of this job's workload."""
        from memtune.memory.predictor import Predictor

        return Predictor(self.workload)

    def ranking(self) -> Ranking:
        """All plans of the job, ranked."""
        from memtune.planning.space import enumerate_plans, rank

        if self.fixed:
            plans = [self._able(self.fixed, "spec.tuning.plan")]
        else:
            plans = enumerate_plans(self.workload, self.space)
        if not plans:
            reasons = "; ".join(self.refusals()) or "its combinations exclude each other"
            raise InputError(f"{self.name}: spec.tuning.space allows no plan: {reasons}")
        return rank(self.workload, self.predictor, plans, self.headroom, self.objective)

    def refusals(self) -> list[str]:
        """Why some combinations that the job allows are not valid plans."""
        from memtune.planning.space import refusals

        return [] if self.fixed else refusals(self.workload, self.space)

    def _able(self, plan: Plan, where: str) -> Plan:
        """Return the plan if this job's GPUs can run it, else raise InputError."""
        from memtune.planning.space import refusal

        if reason := refusal(self.workload, plan):
            raise InputError(f"{where}: {plan} cannot run: {reason}")
        return plan

    def what_if(self, text: str) -> tuple[PredictionCase, Plan]:
        """The plan that ``--plan`` names, with missing knobs taken from the job; and this case with notes on how the
        plan differs from what the job allows."""
        try:
            # For a job with a fixed plan, that plan determines offloading.
            space = replace(self.space, offloads=(Offload.NONE,)) if self.fixed else self.space
            plan = self._able(space.completed(Plan.parse(text)), "--plan")
        except ValueError as error:
            raise InputError(f"--plan: {error}") from None
        return replace(self, notes=(*self.notes, *self._batch_notes(plan), *self._choice_notes(plan))), plan

    def _batch_notes(self, plan: Plan) -> list[str]:
        from memtune.planning.space import divisors

        world, batch = self.workload.world, self.workload.global_batch
        if plan.global_batch(world) == batch:
            return []
        samples = self.workload.samples_per_rank
        size = max(size for size in divisors(samples) if size <= plan.micro_batch)
        own = plan.for_samples(samples, size)
        return [
            f"{plan} makes {plan.global_batch(world):,} sequences a step on {counted(world, 'GPU')}, and is shown as "
            f"it is written; spec.training.globalBatchSize is {batch:,}, which {own} makes"
        ]

    def _choice_notes(self, plan: Plan) -> list[str]:
        from memtune.api.allowed_plans import outside

        reasons = outside(self.job, plan)
        return [f"the operator would not choose this plan: {'; '.join(reasons)}"] if reasons else []

    def cost(self, prediction: Prediction) -> Interval | None:
        """Dollars per million tokens at the predicted speed; None without a price."""
        if self.gpu_hour_price is None:
            return None
        world, speed = self.workload.world, prediction.tokens_per_second
        found = [per_million_tokens(self.gpu_hour_price, world, each) for each in reversed(speed)]
        costs = [each for each in found if each is not None]
        return Interval(*costs) if len(costs) == len(found) else None

    def host(self, plan: Plan) -> HostMemory:
        """The host memory of one pod under a plan."""
        from memtune.memory.host_memory import predicted_host

        return predicted_host(self.workload, self.predictor, plan)

    def fit_probability(self, prediction: Prediction) -> float:
        """The probability that a plan leaves the headroom of the GPU free."""
        return prediction.fit_probability(self.workload.gpu.usable_bytes, self.headroom)

    def fits_gpu_and_host(self, plan: Plan, prediction: Prediction) -> bool:
        """Whether the plan is sure to fit on the GPU and the host."""
        return not self.host_refusal(plan) and prediction.fits(self.workload.gpu.usable_bytes, self.headroom)

    def host_refusal(self, plan: Plan) -> str | None:
        """Why a pod cannot hold the plan's offloaded memory, else None."""
        from memtune.planning.space import host_refusal

        return host_refusal(self.workload, self.predictor, plan)
