"""A plan as arguments of transformers and accelerate, and plans that these cannot run."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from types import SimpleNamespace

import pytest

from memtune.plans.plan import Plan
from memtune.wire.report import Device
from memtune.wire.run import RunKind
from memtune_runner.integrations import huggingface_arguments
from memtune_runner.rank.patches import Patches
from memtune_runner.rank.settings import Settings, SettingsError


def settings_of(plan: str, kind: RunKind = RunKind.TRAIN, device: Device = Device.CUDA) -> Settings:
    parsed = Plan.parse(plan)
    return Settings(
        parsed,
        kind,
        "hf-trainer",
        parsed.global_batch(1),
        32,
        device=device,
        gpu_memory_bytes=1,
    )


def test_batch_and_precision_are_the_plans() -> None:
    values = huggingface_arguments.training_arguments(settings_of("bf16-ddp-full-mb4x8"))
    assert (values["per_device_train_batch_size"], values["gradient_accumulation_steps"]) == (4, 8)
    assert (values["bf16"], values["fp16"], values["auto_find_batch_size"]) == (True, False, False)
    assert (values["deepspeed"], values["fsdp"], values["fsdp_config"]) == (None, "", None)
    assert values["optim"] == "adamw_torch_fused"
    assert "tf32" not in values


def test_a_probe_is_shortened_in_every_place_that_says_how_long_a_step_is() -> None:
    values = huggingface_arguments.training_arguments(settings_of("fp16-z2-none-mb4x8", RunKind.PROBE))
    assert values["gradient_accumulation_steps"] == 2
    assert values["deepspeed"]["gradient_accumulation_steps"] == 2
    assert values["deepspeed"]["train_batch_size"] == 8
    assert (values["bf16"], values["fp16"]) == (False, True)


def test_fsdp_settings() -> None:
    values = huggingface_arguments.training_arguments(settings_of("bf16-fsdpsgo-none-mb1x1-oparam"))
    assert values["fsdp_config"] == {
        "version": 2,
        "reshard_after_forward": False,
        "cpu_offload": True,
        "activation_checkpointing": False,
    }
    assert values["ddp_backend"] == "cuda:nccl,cpu:gloo", "gradients that wait on the host are clipped there"
    assert "ddp_backend" not in huggingface_arguments.training_arguments(settings_of("bf16-fsdp-none-mb1x1"))


@pytest.mark.parametrize(
    ("plan", "optimizer"),
    [
        ("tf32-ddp-none-mb1x1-foreach", "adamw_torch"),
        ("tf32-ddp-none-mb1x1-adamw8bit", "adamw_bnb_8bit"),
        ("tf32-fsdp-none-mb1x1-adamw8bit", "adamw_torch_8bit"),
        ("tf32-ddp-none-mb1x1-muon", None),
    ],
)
def test_optimizers_have_transformers_names(plan: str, optimizer: str | None) -> None:
    values = huggingface_arguments.training_arguments(settings_of(plan))
    assert values.get("optim") == optimizer
    assert values["tf32"] is True


@pytest.mark.parametrize(
    ("plan", "device", "reason"),
    [
        ("fp8-ddp-none-mb1x1", Device.CUDA, "fp8"),
        ("bf16-fsdphyb-none-mb1x1", Device.CUDA, "over all ranks"),
        ("bf16-fsdp-none-mb1x1", Device.VIRTUAL, "virtual"),
        ("bf16-ddp-none-mb1x1-oact", Device.CUDA, "offload of activations"),
    ],
)
def test_a_plan_that_the_trainer_cannot_carry_out_is_refused(plan: str, device: Device, reason: str) -> None:
    with pytest.raises(SettingsError, match=f"{plan} cannot be carried out by integration hf-trainer: .*{reason}"):
        huggingface_arguments.refuse(settings_of(plan, device=device))
    huggingface_arguments.refuse(settings_of("bf16-fsdp-none-mb1x1"))


def test_lessons_of_an_earlier_attempt_are_kept() -> None:
    taught = replace(settings_of("bf16-z3-none-mb4x8"), sharded_save=True)
    values = huggingface_arguments.training_arguments(taught)
    assert values["deepspeed"]["zero_optimization"]["stage3_gather_16bit_weights_on_model_save"] is False
    asks_for_the_whole = huggingface_arguments.deepspeed(replace(taught, integration="accelerate"))
    assert asks_for_the_whole is not None
    assert asks_for_the_whole["zero_optimization"]["stage3_gather_16bit_weights_on_model_save"] is True
    fsdp = replace(settings_of("bf16-fsdp-none-mb4x8"), sharded_save=True)
    assert huggingface_arguments.training_arguments(fsdp)["fsdp_config"]["state_dict_type"] == "SHARDED_STATE_DICT"


class DistributedType(str, Enum):
    """As accelerate has it."""

    NO = "NO"
    MULTI_GPU = "MULTI_GPU"
    MULTI_CPU = "MULTI_CPU"
    FSDP = "FSDP"
    DEEPSPEED = "DEEPSPEED"


class Accelerator:
    """The same."""

    def __init__(self, state: SimpleNamespace) -> None:
        self.state = state

    @property
    def distributed_type(self) -> DistributedType:
        found: DistributedType = self.state.distributed_type
        return found


@pytest.mark.parametrize(
    ("plan", "launched_with", "found"),
    [
        ("bf16-ddp-none-mb4x2", "MULTI_GPU", "NO"),
        ("bf16-ddp-none-mb4x2", "MULTI_CPU", "NO"),
        ("bf16-ddp-none-mb4x2", "FSDP", "FSDP"),
        ("bf16-ddp-none-mb4x2", "DEEPSPEED", "DEEPSPEED"),
        ("bf16-z2-none-mb4x2", "DEEPSPEED", "DEEPSPEED"),
    ],
)
def test_one_rank_is_no_distributed_training_unless_its_launcher_asks_for_another_one(
    plan: str, launched_with: str, found: str
) -> None:
    module, patches = SimpleNamespace(Accelerator=Accelerator, DistributedType=DistributedType), Patches()
    accelerated = Accelerator(SimpleNamespace(distributed_type=DistributedType(launched_with)))
    huggingface_arguments.leave_unwrapped(settings_of(plan), module, patches)
    assert accelerated.distributed_type is DistributedType(found)
    patches.undo()
    assert accelerated.distributed_type is DistributedType(launched_with)
