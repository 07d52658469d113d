"""Makes ``save_pretrained`` work under ZeRO-3 and FSDP, where each rank holds a shard of the weights.

Scripts written for DDP call it. Under ZeRO-3 they would silently save empty weights; under FSDP safetensors would
reject the shards at the end of the training.
"""

from __future__ import annotations

import inspect
import sys
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from memtune.plans.knobs import Sharding
from memtune.wire.report import Phase
from memtune_runner.checkpoints.save_barrier import wait_for_all_ranks
from memtune_runner.checkpoints.saving import current_ranks
from memtune_runner.rank import phases
from memtune_runner.rank.bad_input import BadInputError

if TYPE_CHECKING:
    from memtune_runner.rank.imports import ImportWatch
    from memtune_runner.rank.patches import Patches
    from memtune_runner.rank.settings import Settings

Inherited = Callable[..., Any]

# NCCL lets a rank wait as long in a collective.
_LONGEST_WAIT_SECONDS = 600.0
_REMEDY = "call it on every rank, with is_main_process=accelerator.is_main_process, or save with Trainer.save_model"
_REMEDY_OF_DIFFUSERS = (
    "call it on every rank, that of a pipeline as it is, and that of a model with "
    "is_main_process=accelerator.is_main_process"
)


def is_gathered(settings: Settings) -> bool:
    """Whether the weights of a run are in shards, which a save has to gather."""
    return settings.plan.sharding is Sharding.ZERO_3 or settings.plan.sharding.backend == "fsdp"


def install(settings: Settings, imports: ImportWatch, patches: Patches) -> None:
    """Let ``save_pretrained`` gather the weights that a plan with ZeRO-3 or FSDP shards."""
    if not is_gathered(settings):
        return
    engines: weakref.WeakSet[Any] = weakref.WeakSet()

    def remember(inherited: Inherited, engine: Any, *args: Any, **kwargs: Any) -> None:
        inherited(engine, *args, **kwargs)
        engines.add(engine)

    def save(inherited: Inherited, model: Any, *args: Any, **kwargs: Any) -> Any:
        given = inspect.signature(inherited).bind(model, *args, **kwargs).arguments
        is_given = {**given, **kwargs}.get("state_dict") is not None
        if is_given or not any(_is_sharded(each) for each in model.parameters()):
            return inherited(model, *args, **kwargs)
        engine = next((each for each in engines if each.module is model), None)
        if engine is None and settings.plan.sharding is Sharding.ZERO_3:
            raise BadInputError(
                f"{type(model).__name__}.save_pretrained would save empty weights, since plan {settings.plan} shards "
                "them and this is a part of the model that is trained only: save the whole, or give state_dict"
            )
        remedy = _REMEDY_OF_DIFFUSERS if _is_of_diffusers(model) else _REMEDY
        wait_for_all_ranks(f"save_pretrained({given.get('save_directory', '')})", remedy, _LONGEST_WAIT_SECONDS)
        with phases.during(Phase.SAVE):
            weights = _of_deepspeed(engine, model) if engine is not None else _of_fsdp(model)
            return _written(inherited, model, weights, args, kwargs) if current_ranks().rank == 0 else None

    imports.when_imported(
        "deepspeed.runtime.engine", lambda module: patches.wrap(module.DeepSpeedEngine, "__init__", remember)
    )
    imports.when_imported(
        "transformers.modeling_utils", lambda module: patches.wrap(module.PreTrainedModel, "save_pretrained", save)
    )
    imports.when_imported("peft.peft_model", lambda module: patches.wrap(module.PeftModel, "save_pretrained", save))
    imports.when_imported(
        "diffusers.models.modeling_utils", lambda module: patches.wrap(module.ModelMixin, "save_pretrained", save)
    )


def _is_sharded(weight: Any) -> bool:
    """Whether this rank holds only a shard: DeepSpeed numbers such weights, FSDP makes them DTensors."""
    return hasattr(weight, "ds_id") or hasattr(weight, "device_mesh")


def _of_deepspeed(engine: Any, model: Any) -> dict[str, Any]:
    saves_trained = _saves_trained(model)
    weights: dict[str, Any] = engine._zero3_consolidated_16bit_state_dict(exclude_frozen_parameters=saves_trained)
    return weights


def _saves_trained(model: Any) -> bool:
    """Whether it saves only trained weights, as a model with adapters does, except in diffusers."""
    return hasattr(model, "peft_config") and not _is_of_diffusers(model)


def _is_of_diffusers(model: Any) -> bool:
    module = sys.modules.get("diffusers.models.modeling_utils")
    return module is not None and isinstance(model, module.ModelMixin)


def _of_fsdp(model: Any) -> dict[str, Any]:
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    # Rank 0's host may have no room for the whole frozen model.
    options = StateDictOptions(full_state_dict=True, cpu_offload=True, ignore_frozen_params=_saves_trained(model))
    return get_model_state_dict(model, options=options)


def _written(inherited: Inherited, model: Any, weights: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Save these weights: pass them as an argument if there is one, else as the model's state dict."""
    if not _is_of_diffusers(model):
        return inherited(model, *args, **{**kwargs, "state_dict": weights})
    model.state_dict = lambda *_, **__: weights
    try:
        return inherited(model, *args, **kwargs)
    finally:
        del model.state_dict
