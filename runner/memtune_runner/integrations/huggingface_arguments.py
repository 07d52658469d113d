"""Translates a plan into arguments of transformers and accelerate. Pure: imports neither."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memtune.plans.knobs import Offload, Optimizer, Precision, Sharding
from memtune.plans.plan import Plan
from memtune.wire import environment
from memtune.wire.report import Device
from memtune_runner.rank.deepspeed_file import config_of
from memtune_runner.rank.probe import accumulation, effective_plan
from memtune_runner.rank.settings import Settings, SettingsError

if TYPE_CHECKING:
    from memtune_runner.rank.patches import Patches

_OPTIMIZERS = {
    Optimizer.ADAMW_8BIT: "adamw_bnb_8bit",
    Optimizer.ADAFACTOR: "adafactor",
    Optimizer.LION: "lion_32bit",
    Optimizer.SGD: "sgd",
}


def refuse(settings: Settings) -> None:
    """Raise SettingsError for a plan that these libraries cannot run."""
    plan = settings.plan
    reason = _reason_against(plan, settings.device)
    if reason:
        raise SettingsError(
            f"{environment.PLAN}: {plan} cannot be carried out by integration {settings.integration}: {reason}; "
            "leave it out of tuning.space, or use integration sdk"
        )


def leave_unwrapped(settings: Settings, accelerator: Any, patches: Patches) -> None:
    """Keep accelerate from wrapping a model in DistributedDataParallel on a single GPU, as without a launcher.

    The launcher's variables make accelerate assume several GPUs or, on a virtual GPU, several CPUs. DDP would hold a
    second copy of all gradients there, reduce it with nobody, and refuse models that use a weight outside of forward.
    A wrapper that a launcher's options request instead, such as FSDP, stays visible as a difference from the plan.
    """

    def distributed_type(accelerated: Any) -> str:
        found: str = accelerated.state.distributed_type
        return accelerator.DistributedType.NO if found.startswith("MULTI_") else found

    if settings.world == 1 and settings.plan.sharding is Sharding.DDP:
        patches.replace(accelerator.Accelerator, "distributed_type", property(distributed_type))


def leave_out_of_memories(memory: Any, patches: Patches) -> None:
    """Keep accelerate's `find_executable_batch_size` from trying again: the plan decides the batch."""
    patches.replace(memory, "should_reduce_batch_size", lambda _: False)


def mixed_precision(plan: Plan) -> str:
    """Return accelerate's name for the plan's precision."""
    return {Precision.BF16: "bf16", Precision.FP16: "fp16"}.get(plan.precision, "no")


def training_arguments(settings: Settings) -> dict[str, Any]:
    """Return the fields of transformers' TrainingArguments that apply the plan; the script keeps the others."""
    plan = settings.plan
    return {
        "per_device_train_batch_size": plan.micro_batch,
        "gradient_accumulation_steps": accumulation(settings),
        "auto_find_batch_size": False,
        "bf16": mixed_precision(plan) == "bf16",
        "fp16": mixed_precision(plan) == "fp16",
        # engine/activation_checkpointing.py checkpoints blocks, in the same way for every integration.
        "gradient_checkpointing": False,
        "activation_checkpointing": False,  # the same, under its name since transformers 5
        "deepspeed": deepspeed(settings),
        "fsdp": "full_shard auto_wrap" if plan.sharding.backend == "fsdp" else "",
        "fsdp_config": _fsdp(settings),
        **({"ddp_backend": "cuda:nccl,cpu:gloo"} if reduces_on_host(plan) else {}),
        "use_cpu": settings.device is Device.VIRTUAL,
        **_optimizer(plan),
        **({"tf32": True} if plan.precision is Precision.TF32 and settings.device is not Device.VIRTUAL else {}),
    }


def deepspeed(settings: Settings) -> dict[str, Any] | None:
    """Return the DeepSpeed configuration of a run, whose steps may be shortened; None without DeepSpeed."""
    plan = effective_plan(settings)
    if plan.sharding.backend != "deepspeed":
        return None
    config = config_of(settings, plan)
    if settings.sharded_save and settings.integration == "hf-trainer":  # accelerate would refuse to give the weights
        config["zero_optimization"]["stage3_gather_16bit_weights_on_model_save"] = False
    return config


def fsdp_plugin(settings: Settings) -> dict[str, Any]:
    """Return the arguments of accelerate's FullyShardedDataParallelPlugin."""
    plan = settings.plan
    return {
        **({"state_dict_type": "SHARDED_STATE_DICT"} if settings.sharded_save else {}),
        "fsdp_version": 2,
        "reshard_after_forward": plan.sharding is not Sharding.FSDP_SHARD_GRAD_OP,
        "cpu_offload": plan.offload is Offload.PARAMETERS,
        "auto_wrap_policy": "transformer_based_wrap",
        "activation_checkpointing": False,
    }


def reduces_on_host(plan: Plan) -> bool:
    """Whether gradients lie in host memory, where only gloo and not NCCL can sum their norm."""
    return plan.sharding.backend == "fsdp" and plan.offload is Offload.PARAMETERS


def _fsdp(settings: Settings) -> dict[str, Any] | None:
    if settings.plan.sharding.backend != "fsdp":
        return None
    plugin = fsdp_plugin(settings)
    taken = ("reshard_after_forward", "cpu_offload", "activation_checkpointing", "state_dict_type")
    return {"version": plugin["fsdp_version"], **{name: plugin[name] for name in taken if name in plugin}}


def _optimizer(plan: Plan) -> dict[str, Any]:
    """Return the optimizer under transformers' names; Muon has none, so the script must create it."""
    if plan.optimizer is Optimizer.ADAMW:
        return {"optim": "adamw_torch_fused" if plan.fused_optimizer else "adamw_torch"}
    name = _OPTIMIZERS.get(plan.optimizer)
    if plan.optimizer is Optimizer.ADAMW_8BIT and plan.sharding.backend == "fsdp":
        name = "adamw_torch_8bit"  # torchao's: bitsandbytes writes beyond FSDP's shards
    return {"optim": name} if name else {}


def _reason_against(plan: Plan, device: Device) -> str:
    if plan.precision is Precision.FP8:
        return "their fp8 needs a recipe that no plan holds"
    if plan.sharding is Sharding.FSDP_HYBRID:
        return "their FSDP2 shards over all ranks"
    if plan.sharding.backend == "fsdp" and device is Device.VIRTUAL:
        return "accelerate shards only over real GPUs, and this one is virtual"
    if plan.offload is Offload.ACTIVATIONS:
        return "they know no offload of activations"
    return ""
