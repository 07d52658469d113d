"""A user's own study, with plan knobs beside other parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import yaml

from memtune.plans.plan import Plan
from memtune_operator.search.optuna_sampler import MemTuneSampler
from memtune_operator.search.study import directions_of

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "llama-7b-8gpu.yaml"


def measured_study(sampler: MemTuneSampler, storage: str | None = None, trials: int = 6) -> optuna.Study:
    study = optuna.create_study(
        study_name="any",
        directions=directions_of(sampler.state([]).knowledge),
        sampler=sampler,
        storage=storage,
        load_if_exists=True,
    )

    def objective(trial: optuna.Trial) -> float | tuple[float, float]:
        plan = sampler.plan(trial)
        trial.suggest_float("learning_rate", 1e-5, 1e-3, log=True)
        taken, tokens_per_second = truth(sampler, plan)
        if taken > usable_bytes:
            return sampler.ran_out_of_memory(trial, int(usable_bytes * 1.01))
        return sampler.measured(trial, tokens_per_second, int(taken))

    usable_bytes = sampler.state([]).knowledge.usable_bytes
    study.optimize(objective, n_trials=trials)
    return study


def truth(sampler: MemTuneSampler, plan: Plan) -> tuple[float, float]:
    """Return bytes and tokens per second: a fifth more memory and a third less speed than predicted."""
    found = sampler.state([]).knowledge.predict(plan)
    return found.device.expected * 1.2, found.tokens_per_second.expected / 1.5


def manifest() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
    return found
