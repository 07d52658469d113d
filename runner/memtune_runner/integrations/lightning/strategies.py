"""Translates a plan into Lightning's precision, strategy and devices, for its Trainer and for Fabric."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from memtune.plans.knobs import Offload, Precision
from memtune.plans.plan import Plan
from memtune.wire import environment
from memtune.wire.report import Device
from memtune_runner.integrations import huggingface_arguments
from memtune_runner.rank.settings import Settings, SettingsError

if TYPE_CHECKING:
    import torch
    from torch import nn

_MIXED = {Precision.BF16: "bf16-mixed", Precision.FP16: "16-mixed"}
# DDP strategies with these names start processes, which the runner has already done.
_STARTING = ("spawn", "fork", "notebook")


def refuse(settings: Settings) -> None:
    """Raise SettingsError for a plan that Lightning cannot run."""
    reason = _reason_against(settings.plan)
    if reason:
        raise SettingsError(
            f"{environment.PLAN}: {settings.plan} cannot be carried out by integration lightning: {reason}; leave it "
            "out of tuning.space, or use integration sdk"
        )


def overrides(settings: Settings, package: str, asked: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of Trainer and Fabric that apply the plan, in place of those ``asked`` for."""
    plugins = _plugins(package, asked.get("plugins"))
    precision = _MIXED.get(settings.plan.precision, "32-true")
    if _scales_on_cpu(settings):
        # Given its name, Lightning would use bf16 instead of fp16 on a CPU.
        plugins.append(_module(package, "plugins.precision").MixedPrecision(precision, "cpu"))
    return {
        "accelerator": "cpu" if settings.device is Device.VIRTUAL else "gpu",
        "devices": settings.gpus_per_node,
        "num_nodes": settings.nodes,
        "precision": None if _scales_on_cpu(settings) else precision,
        "plugins": plugins or None,
        "strategy": _strategy(settings, package, asked.get("strategy")),
    }


def use_tf32(plan: Plan) -> None:
    """Enable TF32 products for a tf32 plan."""
    if plan.precision is Precision.TF32:
        import torch

        torch.set_float32_matmul_precision("high")


def _reason_against(plan: Plan) -> str:
    if plan.precision is Precision.FP8:
        return "its fp8 needs a recipe that no plan holds"
    if plan.precision is Precision.FP16 and plan.sharding.backend == "fsdp":
        return "it scales no losses under FSDP2"
    if plan.offload is Offload.ACTIVATIONS:
        return "it knows no offload of activations"
    return ""


def _module(package: str, name: str) -> Any:
    return importlib.import_module(f"{package}.{name}")


def _scales_on_cpu(settings: Settings) -> bool:
    plan = settings.plan
    is_fp16 = plan.precision is Precision.FP16 and plan.sharding.backend == "ddp"
    return is_fp16 and settings.device is Device.VIRTUAL


def _plugins(package: str, asked: Any) -> list[Any]:
    """Return the script's plugins except those that would set the precision or the ranks."""
    module = _module(package, "plugins")
    given = [] if asked is None else list(asked) if isinstance(asked, Iterable) and not _is_name(asked) else [asked]
    kinds = [getattr(module, name) for name in ("Precision", "ClusterEnvironment") if hasattr(module, name)]
    return [each for each in given if not isinstance(each, tuple(kinds)) and not _is_name(each)]


def _is_name(plugin: Any) -> bool:
    return isinstance(plugin, str)


def _strategy(settings: Settings, package: str, asked: Any) -> Any:
    backend = settings.plan.sharding.backend
    if backend == "deepspeed":
        return _deepspeed(settings, package)
    if backend == "fsdp":
        return _fsdp(settings, package)
    if settings.world == 1:
        return "auto"  # one rank needs no wrapper, whose buckets would be a second copy of the gradients
    return asked if _is_ddp(asked) else "ddp"


def _is_ddp(asked: Any) -> bool:
    """Whether the script passes its own DDP options, which are kept."""
    name = asked if isinstance(asked, str) else getattr(asked, "_start_method", "")
    is_of_ddp = name.startswith("ddp") if isinstance(asked, str) else type(asked).__name__ == "DDPStrategy"
    return is_of_ddp and not any(each in name for each in _STARTING)


def _deepspeed(settings: Settings, package: str) -> Any:
    config = huggingface_arguments.deepspeed(settings)
    assert config is not None  # the plan uses DeepSpeed
    # The Trainer fills these in from its own arguments; Fabric has no accumulation.
    for name in ("gradient_accumulation_steps", "gradient_clipping"):
        config.pop(name, None)
    return _module(package, "strategies").DeepSpeedStrategy(config=config)


def _fsdp(settings: Settings, package: str) -> Any:
    base = _module(package, "strategies").ModelParallelStrategy
    options: dict[str, Any] = {"data_parallel_size": settings.world, "tensor_parallel_size": 1}
    if huggingface_arguments.reduces_on_host(settings.plan):
        options["process_group_backend"] = "cuda:nccl,cpu:gloo"
    if "fabric" in package:
        return base(parallelize_fn=lambda model, _mesh: _sharded(model, settings, _device(settings)), **options)
    return _trainers(base, settings)(**options)


def _device(settings: Settings) -> torch.device:
    import torch

    if settings.device is Device.VIRTUAL:
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def _sharded(model: nn.Module, settings: Settings, device: torch.device) -> nn.Module:
    from torch.distributed.fsdp import FSDPModule

    from memtune_runner.engine.fsdp import shard

    if not isinstance(model, FSDPModule):
        shard(model, settings, device)
    return model


def _trainers(base: Any, settings: Settings) -> Any:
    class ShardedStrategy(base):  # type: ignore[misc]  # what Lightning is there decides on the base
        """Lightning's FSDP2 strategy, which also shards the model instead of leaving that to the script.

        Steps of the module run through its forward, as under DDP, so that FSDP gathers the root's weights.
        """

        def setup(self, trainer: Any) -> None:
            self.accelerator.setup(trainer)
            module = self.precision_plugin.convert_module(self.lightning_module)
            self.model = _sharded(module, settings, self.root_device)
            if not huggingface_arguments.reduces_on_host(settings.plan):
                self.model_to_device()
            self.barrier()
            if trainer.state.fn.value == "fit":
                self.setup_optimizers(trainer)
            self.setup_precision_plugin()

        def training_step(self, *args: Any, **kwargs: Any) -> Any:
            with self.precision_plugin.train_step_context():
                return self._through_forward("training_step", *args, **kwargs)

        def validation_step(self, *args: Any, **kwargs: Any) -> Any:
            with self.precision_plugin.val_step_context():
                return self._through_forward("validation_step", *args, **kwargs)

        def test_step(self, *args: Any, **kwargs: Any) -> Any:
            with self.precision_plugin.test_step_context():
                return self._through_forward("test_step", *args, **kwargs)

        def predict_step(self, *args: Any, **kwargs: Any) -> Any:
            with self.precision_plugin.predict_step_context():
                return self._through_forward("predict_step", *args, **kwargs)

        def _through_forward(self, name: str, *args: Any, **kwargs: Any) -> Any:
            return self._forward_redirection(self.model, self.lightning_module, name, *args, **kwargs)

    return ShardedStrategy
