"""The FSDP2 settings of a plan: against golden files, and against torch's own policies."""

from __future__ import annotations

import json
from inspect import signature
from pathlib import Path

import pytest

from memtune.plans.fsdp_config import fsdp_config
from memtune.plans.knobs import Sharding
from memtune.plans.plan import Plan

GOLDEN = Path(__file__).parents[2] / "golden"
PLANS = [
    "bf16-fsdp-none-mb4x8",
    "bf16-fsdp-full-mb1x32-oparam-g32",
    "bf16-fsdphyb-sel-mb4x8",
    "fp16-fsdpsgo-none-mb4x8",
    "fp32-fsdp-none-mb1x1-oparam",
    "fp8-fsdp-every4-mb2x16-oact",
    "tf32-fsdp-none-mb4x8-g32",
]


@pytest.mark.parametrize("short_form", PLANS)
def test_settings_are_the_golden_ones(short_form: str) -> None:
    golden = json.loads((GOLDEN / f"fsdp-{short_form}.json").read_text())
    config = fsdp_config(Plan.parse(short_form), nodes=2, gpus_per_node=8)
    assert config == golden, "if the change is meant, write the new settings to the golden file"


def test_no_golden_file_is_left_over() -> None:
    assert {path.stem.removeprefix("fsdp-") for path in GOLDEN.glob("fsdp-*.json")} == set(PLANS)


def test_torch_knows_every_setting() -> None:
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    config = fsdp_config(Plan.parse("bf16-fsdp-none-mb1x1-oparam"), nodes=1, gpus_per_node=2)
    assert set(config) <= set(signature(fully_shard).parameters)
    assert set(config["mp_policy"]) <= set(signature(MixedPrecisionPolicy).parameters)
    assert set(config["offload_policy"]) <= set(signature(CPUOffloadPolicy).parameters)


@pytest.mark.parametrize("sharding", [each for each in Sharding if each.backend != "fsdp"])
def test_a_plan_for_another_backend_is_refused(sharding: Sharding) -> None:
    with pytest.raises(ValueError, match="is no plan for FSDP"):
        fsdp_config(Plan.parse(f"bf16-{sharding}-none-mb1x1"), nodes=1, gpus_per_node=8)
