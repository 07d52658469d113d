"""Methods to choose the next probe for `search.py`: the operator's own, and those that need no library."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from search_tables import Outcome, Table

from memtune.api.tuning import Tuning
from memtune.planning.knowledge import Lesson
from memtune.planning.next_probe import MEMTUNE, SearchState, Trial, reason_to_stop, target_of
from memtune.plans.plan import Plan
from memtune.wire.probe_pruning import NOTHING, Target
from memtune_operator.search.optuna_search import propose

# The budget of the other methods, half as much again as the operator's default.
MOST_PROBES = 12


@dataclass
class Hunt:
    """One search of one table. It is over when a good plan was measured, or when the probes are spent.

    A ``blind`` search does not know when it found a good plan, as in reality. ``sampler`` is ``tuning.sampler``, seeded
    by ``seed`` and the number of the probe. Without ``steps`` each probe is steady; with them their durations are
    recorded ones, and in a hunt that ``prunes`` probes end early.
    """

    table: Table
    random: Random
    blind: bool = False
    most: int = MOST_PROBES
    sampler: str = MEMTUNE
    seed: str = ""
    steps: int | None = None
    prunes: bool = False
    plans: list[Plan] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    found: bool = False

    @property
    def is_over(self) -> bool:
        """Whether the search is finished."""
        is_through = len(self.plans) >= min(self.most, len(self.table.possible))
        return (self.found and not self.blind) or is_through

    def probe(self, plan: Plan) -> Outcome:
        """Measure a plan."""
        target = self._target if self.prunes else NOTHING
        outcome = self.table.probe(plan, self.random, self.steps, target, self.prunes)
        self.plans.append(plan)
        self.outcomes.append(outcome)
        self.found = self.found or (outcome.fits and self.table.is_good(plan))
        return outcome

    @property
    def _target(self) -> Target:
        """The target of the next plan, as the operator sets it for a probe."""
        fitting = [outcome for outcome in self.outcomes if outcome.fits]
        best = max(fitting, key=lambda outcome: outcome.tokens_per_second, default=None)
        knowledge = state_of(self).knowledge
        return target_of(knowledge, best.tokens_per_second, best.device_bytes) if best else target_of(knowledge)

    @property
    def share(self) -> float:
        """The true throughput of the plan that measured fastest, over the best plan's; 0 if none fits."""
        pairs = zip(self.plans, self.outcomes, strict=True)
        fitting = [(outcome.tokens_per_second, plan) for plan, outcome in pairs if outcome.fits]
        return self.table.share(max(fitting, key=lambda pair: pair[0])[1]) if fitting else 0.0

    @property
    def died(self) -> int:
        """How many probes ran out of memory."""
        return sum(outcome.died for outcome in self.outcomes)

    @property
    def gpu_seconds(self) -> float:
        """The cost of all probes."""
        return sum(outcome.gpu_seconds for outcome in self.outcomes)


Method = Callable[[Hunt], None]


def memtune(hunt: Hunt) -> None:
    """The operator's method: recalibrated after every probe, ended by its own rules and its default of maxProbes."""
    hunt.most = Tuning().max_probes
    while not hunt.is_over:
        state = state_of(hunt)
        plan = None if reason_to_stop(state.choice) else propose(state)
        if plan is None:
            return
        hunt.probe(plan)


def state_of(hunt: Hunt) -> SearchState:
    """The operator's knowledge after the probes so far, as `memtune.controller.probing` derives it from a status."""
    trials = tuple(
        Trial(number, plan, outcome.fits, outcome.died, outcome.tokens_per_second, _lesson(plan, outcome))
        for number, (plan, outcome) in enumerate(zip(hunt.plans, hunt.outcomes, strict=True), 1)
    )
    lessons = tuple(trial.lesson for trial in trials if trial.lesson)
    return SearchState(hunt.table.knowledge(lessons), trials, f"{hunt.seed}/{len(trials) + 1}", hunt.sampler)


def _lesson(plan: Plan, outcome: Outcome) -> Lesson:
    return Lesson(
        plan,
        outcome.allocated_bytes,
        outcome.reserved_bytes,
        outcome.device_bytes,
        outcome.step_seconds,
        outcome.died,
        outcome.demanded_bytes,
    )


def random_order(hunt: Hunt) -> None:
    """Plans in random order, without repetition."""
    _in_order(hunt, hunt.random.sample(hunt.table.possible, len(hunt.table.possible)))


def grid_order(hunt: Hunt) -> None:
    """Plans in the order of nested loops: sharding, checkpointing, micro-batch."""
    _in_order(hunt, hunt.table.possible)


def _in_order(hunt: Hunt, plans: tuple[Plan, ...] | list[Plan]) -> None:
    for plan in plans:
        if hunt.is_over:
            return
        hunt.probe(plan)


def deepspeed_order(hunt: Hunt) -> None:
    """Stages 0, 1, 2, 3 that may fit; in each, increasing micro-batches until memory runs out.

    It ends after a stage that is no better than the one before (deepspeed/autotuning/README.md, "Autotuning Workflow
    and Scope"). It chooses nothing else: the user is assumed to have guessed the best plan's other knobs. If a table
    has no plan of DeepSpeed's, those with the same sharding stand for them.
    """
    plans, before = _guessed(hunt), 0.0
    own = [plan for plan in plans if plan.sharding.backend == "deepspeed"]
    for stage in range(4):
        stage_plans = [plan for plan in own or plans if plan.sharding.zero_stage == stage]
        best = _swept(hunt, stage_plans)
        if hunt.is_over or (stage_plans and best <= before):
            return
        before = max(best, before)


def composer_halving(hunt: Hunt) -> None:
    """The largest micro-batch, halved until it does not run out of memory.

    That is all that `device_train_microbatch_size="auto"` chooses (composer/trainer/trainer.py): the user is assumed to
    have guessed the best plan's sharding, too.
    """
    sharding, size = hunt.table.best.sharding, 0
    plans = [plan for plan in _guessed(hunt) if plan.sharding is sharding]
    for plan in sorted(plans, key=lambda each: -each.micro_batch):
        if hunt.is_over:
            return
        if size and 2 * plan.micro_batch > size:
            continue
        if not hunt.probe(plan).died:
            return
        size = plan.micro_batch


def _guessed(hunt: Hunt) -> list[Plan]:
    """The plans that equal the best one in every knob except sharding and batch."""
    best = hunt.table.best
    return [
        plan
        for plan in hunt.table.possible
        if (plan.checkpointing, plan.fused_loss, plan.offload) == (best.checkpointing, best.fused_loss, best.offload)
    ]


def _swept(hunt: Hunt, plans: list[Plan]) -> float:
    """The best throughput of one stage."""
    best = 0.0
    for plan in sorted(plans, key=lambda each: each.micro_batch):
        if hunt.is_over:
            break
        outcome = hunt.probe(plan)
        if outcome.died:
            break
        best = max(best, outcome.tokens_per_second if outcome.fits else 0.0)
    return best
