"""``save_pretrained`` under ZeRO-3, where each rank's weights are empty but for its shard of them.

Scripts that were written for DDP save so. Without a word from DeepSpeed, what they save has weights of no elements.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from memtune.knobs import Sharding
from memtune.report import Phase
from memtune_runner import phases
from memtune_runner.bad_input import BadInputError
from memtune_runner.checkpoints.meeting import meet
from memtune_runner.checkpoints.saving import current_ranks

if TYPE_CHECKING:
    from memtune_runner.settings import Settings
    from memtune_runner.watch.imports import ImportWatch
    from memtune_runner.watch.patches import Patches

Inherited = Callable[..., Any]

# As long as NCCL lets a rank wait in a collective.
_LONGEST_WAIT_SECONDS = 600.0
_REMEDY = "call it on every rank, with is_main_process=accelerator.is_main_process, or save with Trainer.save_model"


def install(settings: Settings, imports: ImportWatch, patches: Patches) -> None:
    """Let ``save_pretrained`` gather the weights that a plan with ZeRO-3 shards."""
    if settings.plan.sharding is not Sharding.ZERO_3:
        return
    engines: weakref.WeakSet[Any] = weakref.WeakSet()

    def remember(inherited: Inherited, engine: Any, *args: Any, **kwargs: Any) -> None:
        inherited(engine, *args, **kwargs)
        engines.add(engine)

    def save(inherited: Inherited, model: Any, *args: Any, **kwargs: Any) -> Any:
        given = inspect.signature(inherited).bind(model, *args, **kwargs).arguments
        is_given = {**given, **kwargs}.get("state_dict") is not None
        if is_given or not any(hasattr(each, "ds_id") for each in model.parameters()):
            return inherited(model, *args, **kwargs)
        engine = next((each for each in engines if each.module is model), None)
        if engine is None:
            raise BadInputError(
                f"{type(model).__name__}.save_pretrained would save empty weights, since plan {settings.plan} shards "
                "them and this is a part of the model that is trained only: save the whole, or give state_dict"
            )
        meet(f"save_pretrained({given.get('save_directory', '')})", _REMEDY, _LONGEST_WAIT_SECONDS)
        with phases.during(Phase.SAVE):
            # As the Trainer does: of adapters, only what is trained is saved.
            has_adapters = hasattr(model, "peft_config")
            weights = engine._zero3_consolidated_16bit_state_dict(exclude_frozen_parameters=has_adapters)
            whole = {**kwargs, "state_dict": weights}
            return inherited(model, *args, **whole) if current_ranks().rank == 0 else None

    imports.when_imported(
        "deepspeed.runtime.engine", lambda module: patches.wrap(module.DeepSpeedEngine, "__init__", remember)
    )
    imports.when_imported(
        "transformers.modeling_utils", lambda module: patches.wrap(module.PreTrainedModel, "save_pretrained", save)
    )
    imports.when_imported("peft.peft_model", lambda module: patches.wrap(module.PeftModel, "save_pretrained", save))
