"""The scripts of examples/scripts run as they are on CUDA, each under the plan it is given."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from small_trainings import PROBE, SCRIPTS, assert_followed_plan, fine_tune, run

from memtune.plans.plan import Plan
from memtune.wire.report import Device
from memtune_runner.engine.optimizers import _libraries_of_8_bits

CUDA = {**PROBE, "DEVICE": "cuda", "GPU_MEMORY_BYTES": ""}


@pytest.mark.parametrize(
    ("script", "integration", "plan"),
    [
        ("ddp_loop", "env", "bf16-ddp-none-mb4x2"),
        ("fsdp2_loop", "env", "bf16-fsdp-none-mb4x2"),
        ("hf_trainer", "hf-trainer", "bf16-ddp-full-mb4x4"),
        ("hf_trainer", "hf-trainer", "bf16-z2-none-mb2x4"),
        ("hf_trainer", "hf-trainer", "bf16-fsdp-full-mb4x4"),
        ("hf_trainer", "hf-trainer", "bf16-fsdpsgo-none-mb4x4-oparam"),
        ("accelerate_loop", "accelerate", "bf16-ddp-sel-mb4x2"),
        ("accelerate_loop", "accelerate", "bf16-z1-none-mb4x4"),
        ("accelerate_loop", "accelerate", "bf16-fsdp-sel-mb4x4"),
        ("accelerate_loop", "accelerate", "bf16-fsdp-none-mb4x4-oparam"),
        ("sdk_loop", "sdk", "bf16-fsdp-full-mb4x2"),
        ("sdk_loop", "sdk", "bf16-z3-none-mb2x4"),
        ("sdk_loop", "sdk", "fp16-ddp-every2-mb4x2"),
        ("sdk_loop", "sdk", "bf16-z2-none-mb2x4-oopt"),
        ("sdk_loop", "sdk", "bf16-fsdp-none-mb4x2-oparam"),
        ("sdk_loop", "sdk", "bf16-ddp-none-mb4x2-oact"),
    ],
)
def test_a_script_follows_its_plan(script: str, integration: str, plan: str, tmp_path: Path) -> None:
    outcomes = run(SCRIPTS / f"{script}.py", plan, tmp_path, 1, **CUDA, INTEGRATION=integration)
    assert_followed_plan(outcomes, plan, Device.CUDA)
    assert outcomes[0].report.memory.non_torch_bytes, "the driver counts the context"


@pytest.mark.parametrize("sharding", ["ddp", "fsdp", "z2"])
def test_products_are_made_in_fp8(sharding: str, tmp_path: Path) -> None:
    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("this GPU has no fp8, which came with Ada and Hopper")
    if find_spec("torchao") is None:
        pytest.skip("fp8 needs torchao, which is not installed")
    plan = f"fp8-{sharding}-none-mb4x2"
    assert_followed_plan(run(SCRIPTS / "sdk_loop.py", plan, tmp_path, 1, **CUDA, INTEGRATION="sdk"), plan, Device.CUDA)


@pytest.mark.parametrize("sharding", ["ddp", "fsdp", "z2"])
def test_an_optimizer_keeps_its_states_in_8_bits(sharding: str, tmp_path: Path) -> None:
    plan = f"bf16-{sharding}-none-mb4x2-adamw8bit"
    libraries, _ = _libraries_of_8_bits(Plan.parse(plan))
    if not any(map(find_spec, libraries)):
        pytest.skip(f"adamw-8bit needs {' or '.join(libraries)}, which is not installed")
    assert_followed_plan(run(SCRIPTS / "sdk_loop.py", plan, tmp_path, 1, **CUDA, INTEGRATION="sdk"), plan, Device.CUDA)


def test_a_lora_of_a_model_of_ones_own(tmp_path: Path) -> None:
    plan = "bf16-ddp-every2-mb4x2"
    arguments = fine_tune(tmp_path)
    assert_followed_plan(
        run(SCRIPTS / "finetune.py", plan, tmp_path, 1, arguments, **CUDA, INTEGRATION="hf-trainer"), plan, Device.CUDA
    )
