"""Formulas and traces are independent, and must agree on models that both can describe."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from described_models import CONFIGS, LENGTH, RANK, traced
from gpu_pairs import LENGTH as GPU_LENGTH
from gpu_pairs import MODELS, Pair, workload
from gpu_trace import traced_model

from memtune.gpus.gpu import find
from memtune.memory.constants import DEFAULT_CONSTANTS
from memtune.memory.formulas.recipe import lower
from memtune.memory.formulas.shape import shape_of
from memtune.memory.predictor import predict_recipe
from memtune.memory.replay import Replayer, numerics_of
from memtune.memory.traced_model import TracedModel
from memtune.memory.workload import Workload
from memtune.model.architecture import Adapter
from memtune.model.huggingface import from_hf_config
from memtune.plans.plan import Plan

GPUS = 8
PLANS = [Plan.parse(f"bf16-{sharding}-mb16x2") for sharding in ("fsdp-none", "fsdp-full", "z3-sel")]
# Autocast is traced separately; one model for each kind of norm, projection and activation is enough.
AUTOCAST = ("llama-tiny", "gpt2")
AUTOCAST_PLANS = [Plan.parse(f"bf16-ddp-{checkpointing}-mb16x2") for checkpointing in ("none", "sel", "full")]
# Under stage 3 products keep inputs of frozen weights; and what is kept selectively are an adapter's products, too.
ADAPTED = (("q_proj", "v_proj"), ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"))
ADAPTED_PLANS = [Plan.parse(f"bf16-{plan}") for plan in ("z2-none-mb16x2", "z3-none-mb16x2", "z3-full-mb16x2")]
ADAPTED_PLANS += [Plan.parse(f"bf16-{plan}") for plan in ("z3-sel-mb16x2", "fsdp-sel-mb16x2", "z2-sel-mb8x1")]
# One factor was fitted to what other implementations keep; transformers' traces have none of it.
CONSTANTS = replace(DEFAULT_CONSTANTS, activation_factor=1.0, workspace_bytes=0.0)

# Decoders of the GPU benchmark, whose facts do not come from a config.
PAIRS = [
    Pair("0.1B", "fp32-ddp-none-mb4x1"),
    Pair("0.1B", "bf16-ddp-none-mb16x1"),
    Pair("0.1B", "bf16-z0-none-mb8x1"),
    Pair("0.1B", "bf16-z2-none-mb16x1", 8),
    Pair("0.5B", "fp32-fsdp-every2-mb4x1", 2),
    Pair("0.5B", "bf16-ddp-full-mb16x2"),
    Pair("1.1B", "bf16-z1-full-mb8x2", 8),
    Pair("1.1B", "bf16-fsdpsgo-none-mb2x1", 2),
    Pair("1.1B", "bf16-fsdpsgo-none-mb1x1"),
    Pair("3B", "bf16-z1-full-mb4x1"),
    Pair("3B", "bf16-z3-full-mb4x1", 2),
    Pair("3B", "bf16-z3-full-mb1x1"),
    Pair("1.1B", "bf16-z3-none-mb1x1", 64),
    Pair("3B", "bf16-fsdp-every2-mb4x1", 64),
    Pair("7B", "bf16-z2-full-mb2x1", 8),
    Pair("7B", "bf16-fsdp-none-mb1x2", 64),
    # Sums in fp32 with 16-bit weights.
    Pair("1.1B", "fp16-z1-full-mb4x2-g32", 8),
    Pair("1.1B", "bf16-z1-full-mb4x1-oopt-g32", 8),
    Pair("1.1B", "bf16-z2-full-mb4x2-oopt-g32", 8),
    Pair("1.1B", "bf16-z2-full-mb1x1-g32"),
    Pair("1.1B", "bf16-z3-full-mb4x1-g32", 8),
]


def formula_bytes(name: str, plan: Plan, adapter: Adapter | None = None) -> float:
    architecture, batch = from_hf_config(CONFIGS[name]), plan.global_batch(GPUS)
    workload = Workload(architecture, find("h100-80gb"), batch, LENGTH, gpus_per_node=GPUS, adapter=adapter)
    recipe = replace(lower(workload, plan), workspace_bytes=0.0)
    return predict_recipe(shape_of(architecture, adapter), recipe, CONSTANTS).allocated.expected


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


@pytest.mark.parametrize("dropout", [0.0, 0.05])
@pytest.mark.parametrize("adapted", ADAPTED, ids=lambda each: str(len(each)))
@pytest.mark.filterwarnings("ignore::FutureWarning")  # peft asks transformers for what has another name by now
def test_formulas_and_traces_agree_on_adapters(adapted: tuple[str, ...], dropout: float) -> None:
    name = "tinyllama-1.1b"
    replayer = Replayer(traced(name, ["half"], adapted, dropout), gpus_per_node=GPUS)
    for plan in ADAPTED_PLANS:
        replayed = replayer.replay(plan).peak.allocated
        assert formula_bytes(name, plan, Adapter(RANK, adapted, dropout=dropout)) == pytest.approx(
            replayed, rel=0.05
        ), plan


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_formulas_and_traces_agree_with_a_gpu(pair: Pair) -> None:
    plan, asked = Plan.parse(pair.plan), workload(pair, find("h100-80gb"))
    model = _decoder(pair.model, numerics_of(plan))
    replayed = Replayer(model.trace, asked.nodes, asked.gpus_per_node).replay(plan).peak.allocated
    found = predict_recipe(shape_of(MODELS[pair.model], None), lower(asked, plan), CONSTANTS).allocated.expected
    assert found == pytest.approx(replayed, rel=0.05)


@cache
def _decoder(name: str, numerics: str) -> TracedModel:
    return traced_model(name, MODELS[name], GPU_LENGTH, [numerics])
