"""Formulas and traces know nothing of each other, and must say the same of models that both can describe."""

from __future__ import annotations

from dataclasses import replace

import pytest
from described import CONFIGS, LENGTH, traced

from memtune.gpu import find
from memtune.model.huggingface import from_hf_config
from memtune.plan import Plan
from memtune.predict.constants import DEFAULT_CONSTANTS
from memtune.predict.predictor import predict_recipe
from memtune.predict.recipe import lower
from memtune.predict.shape import shape_of
from memtune.replay import Replayer
from memtune.workload import Workload

GPUS = 8
PLANS = [Plan.parse(f"bf16-{sharding}-mb16x2") for sharding in ("fsdp-none", "fsdp-full", "z3-sel")]
# Autocast is a trace of its own, of which one model is enough for each kind of norm, projection and activation.
AUTOCAST = ("llama-tiny", "gpt2")
AUTOCAST_PLANS = [Plan.parse(f"bf16-ddp-{checkpointing}-mb16x2") for checkpointing in ("none", "sel", "full")]
# What the layers of other code keep was fitted into one factor; a trace of transformers' own has none of it.
CONSTANTS = replace(DEFAULT_CONSTANTS, activation_factor=1.0, workspace_bytes=0.0)


def formula_bytes(name: str, plan: Plan) -> float:
    architecture = from_hf_config(CONFIGS[name])
    workload = Workload(architecture, find("h100-80gb"), plan.global_batch(GPUS), LENGTH, gpus_per_node=GPUS)
    return predict_recipe(shape_of(architecture, None), lower(workload, plan), CONSTANTS).allocated.expected


@pytest.mark.parametrize("name", CONFIGS)
def test_formulas_and_traces_agree(name: str) -> None:
    replayer = Replayer(traced(name, ["half"]), gpus_per_node=GPUS)
    for plan in PLANS:
        replayed = replayer.replay(plan).peak.allocated
        assert formula_bytes(name, plan) == pytest.approx(replayed, rel=0.05), plan


@pytest.mark.parametrize("name", AUTOCAST)
def test_formulas_and_traces_agree_under_autocast(name: str) -> None:
    replayer = Replayer(traced(name, ["autocast"]), gpus_per_node=GPUS)
    for plan in AUTOCAST_PLANS:
        replayed = replayer.replay(plan).peak.allocated
        assert formula_bytes(name, plan) == pytest.approx(replayed, rel=0.05), plan
