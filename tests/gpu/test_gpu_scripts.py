"""The scripts of examples/scripts run as they are on CUDA, each under the plan it is given."""

from __future__ import annotations

from pathlib import Path

import pytest
from followed import PROBE, fine_tune, followed
from watched import SCRIPTS, run

from memtune.report import Device

CUDA = {**PROBE, "DEVICE": "cuda", "GPU_MEMORY_BYTES": ""}


@pytest.mark.parametrize(
    ("script", "integration", "plan"),
    [
        ("ddp_loop", "env", "bf16-ddp-none-mb4x2"),
        ("fsdp2_loop", "env", "bf16-fsdp-none-mb4x2"),
        ("hf_trainer", "hf-trainer", "bf16-ddp-full-mb4x4"),
        ("hf_trainer", "hf-trainer", "bf16-z2-none-mb2x4"),
        ("accelerate_loop", "accelerate", "bf16-ddp-sel-mb4x2"),
        ("accelerate_loop", "accelerate", "bf16-z1-none-mb4x4"),
        ("sdk_loop", "sdk", "bf16-fsdp-full-mb4x2"),
        ("sdk_loop", "sdk", "bf16-z3-none-mb2x4"),
        ("sdk_loop", "sdk", "fp16-ddp-every2-mb4x2"),
    ],
)
def test_a_script_follows_its_plan(script: str, integration: str, plan: str, tmp_path: Path) -> None:
    outcomes = run(SCRIPTS / f"{script}.py", plan, tmp_path, 1, **CUDA, INTEGRATION=integration)
    followed(outcomes, plan, Device.CUDA)
    assert outcomes[0].report.memory.non_torch_bytes, "the driver counts the context"


def test_a_lora_of_a_model_of_ones_own(tmp_path: Path) -> None:
    plan = "bf16-ddp-every2-mb4x2"
    arguments = fine_tune(tmp_path)
    followed(
        run(SCRIPTS / "finetune.py", plan, tmp_path, 1, arguments, **CUDA, INTEGRATION="hf-trainer"), plan, Device.CUDA
    )
