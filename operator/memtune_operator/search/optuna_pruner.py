"""MemTunePruner: an Optuna pruner that ends slow trials and those that exceed their memory, like the runner does.

study = optuna.create_study(direction="maximize", sampler=sampler, pruner=MemTunePruner.for_job(manifest))
"""

from __future__ import annotations

from typing import Any

from optuna.pruners import BasePruner
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from memtune.planning.knowledge import PlanKnowledge
from memtune.planning.next_probe import target_of
from memtune.planning.space import THROUGHPUT
from memtune.wire.probe_pruning import Step, pruned
from memtune_operator.search.optuna_sampler import knowledge_for
from memtune_operator.search.study import FITS, STALE, named_plan


class MemTunePruner(BasePruner):
    """Prunes a trial whose plan can no longer beat the best one that fits, or exceeds the memory limit.

    It reads the records of ``MemTuneSampler.stepped``. Steps below ``n_warmup_steps`` are ignored: the first step
    compiles and fills caches, so it is slower. The first trials of a study have only the memory limit to keep.
    """

    def __init__(self, knowledge: PlanKnowledge, n_warmup_steps: int = 1) -> None:
        self._knowledge, self._n_warmup_steps = knowledge, n_warmup_steps

    @classmethod
    def for_job(cls, manifest: dict[str, Any], n_warmup_steps: int = 1) -> MemTunePruner:
        """Create the pruner for the plans of a MemoryTunedJob manifest, which must name its GPU or its memory."""
        return cls(knowledge_for(manifest), n_warmup_steps)

    def prune(self, study: Study, trial: FrozenTrial) -> bool:
        """Whether to prune the trial."""
        knowledge = self._knowledge
        speeds = [speed for step, speed in trial.intermediate_values.items() if step >= self._n_warmup_steps]
        device_bytes = trial.user_attrs.get("device_bytes", 0)
        ended = (
            each for each in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)) if _counts(knowledge, each)
        )
        best = max(ended, key=lambda each: each.values[0], default=None)
        if not speeds:
            return False
        target = (
            target_of(knowledge, best.values[0], best.user_attrs.get("device_bytes", 0))
            if best
            else target_of(knowledge)
        )
        is_timed = knowledge.objective == THROUGHPUT
        return pruned(target, [Step(speed if is_timed else 0.0, device_bytes) for speed in speeds]) is not None


def _counts(knowledge: PlanKnowledge, trial: FrozenTrial) -> bool:
    """Whether a trial is the target: its plan fits, is still in the job's space, and was measured like others."""
    plan = named_plan(trial)
    is_open = plan is None or knowledge.space.allows(plan)
    return is_open and STALE not in trial.user_attrs and (trial.constraints or {}).get(FITS, 0.0) <= 0
