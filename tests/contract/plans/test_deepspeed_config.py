"""The DeepSpeed JSON of a plan: against golden files, and against DeepSpeed's own parser."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from memtune.plans.deepspeed_config import deepspeed_config
from memtune.plans.knobs import Offload, Sharding
from memtune.plans.plan import Plan

GOLDEN = Path(__file__).parents[2] / "golden"
NVME = "/mnt/nvme"
WORLD = 8
PLANS = [
    "bf16-z0-none-mb4x8",
    "bf16-z1-none-mb4x8-g32",
    "bf16-z2-sel-mb4x8",
    "fp16-z2-full-mb2x16-oopt",
    "fp8-z3-full-mb1x32-oparam-bk50m",
    "bf16-z3-every4-mb2x16-onvme",
    "bf16-z3-sel-mb4x8",
    "tf32-z3-none-mb4x8-oact",
    "fp32-z1-none-mb4x8",
]


@pytest.mark.parametrize("short_form", PLANS)
def test_config_is_the_golden_one(short_form: str) -> None:
    config = deepspeed_config(Plan.parse(short_form), WORLD, NVME)
    golden = json.loads((GOLDEN / f"deepspeed-{short_form}.json").read_text())
    assert config == golden, "if the change is meant, write the new configuration to the golden file"


def test_no_golden_file_is_left_over() -> None:
    assert {path.stem.removeprefix("deepspeed-") for path in GOLDEN.glob("deepspeed-*.json")} == set(PLANS)


@pytest.fixture(scope="module")
def parser() -> Any:
    previous = logging.root.manager.disable
    logging.disable(logging.WARNING)  # DeepSpeed tells at import that it finds no GPU
    from deepspeed.runtime import config  # type: ignore[import-untyped]  # DeepSpeed ships no types

    logging.disable(previous)
    return config


@pytest.mark.parametrize("short_form", PLANS)
def test_deepspeed_reads_every_value_as_it_is_meant(
    short_form: str, parser: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parser.dist, "get_rank", lambda: 0)
    monkeypatch.setattr(parser.dist, "get_world_size", lambda: WORLD)
    plan = Plan.parse(short_form)
    config = deepspeed_config(plan, WORLD, NVME)
    read = parser.DeepSpeedConfig(json.loads(json.dumps(config)))
    assert read.train_batch_size == plan.global_batch(WORLD)
    assert read.train_micro_batch_size_per_gpu == plan.micro_batch
    assert read.gradient_accumulation_steps == plan.accumulation
    assert read.bfloat16_config.enabled == config["bf16"]["enabled"]
    assert read.float16_config.enabled == config["fp16"]["enabled"]
    assert read.grad_accum_dtype == config["data_types"]["grad_accum_dtype"]
    assert read.zero_allow_untested_optimizer is True
    assert read.zero_force_ds_cpu_optimizer is False
    zero = read.zero_config.model_dump(by_alias=True, mode="json")
    for name, value in config["zero_optimization"].items():
        if isinstance(value, dict):
            assert zero[name].items() >= value.items()
        else:
            assert zero[name] == value


@pytest.mark.parametrize("sharding", [each for each in Sharding if each.backend != "deepspeed"])
def test_a_plan_for_another_backend_is_refused(sharding: Sharding) -> None:
    plan = Plan.parse(f"bf16-{sharding}-none-mb1x1")
    with pytest.raises(ValueError, match="is no plan for DeepSpeed"):
        deepspeed_config(plan, WORLD)


def test_nvme_without_a_path_is_refused() -> None:
    plan = Plan.parse("bf16-z3-none-mb1x1-onvme")
    assert plan.offload is Offload.NVME
    with pytest.raises(ValueError, match="needs a path; give the mount point"):
        deepspeed_config(plan, WORLD)
