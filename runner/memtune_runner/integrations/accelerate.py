"""The integration `accelerate`: builds the Accelerator from the plan and feeds its loop micro-batches.

After its last step, a probe evaluates one batch and saves once, unless the script did: a loop of accelerate does not
announce an evaluation, but it has prepared everything that one needs.
"""

from __future__ import annotations

import inspect
import os
import sys
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memtune.wire.report import Device, Ending, Phase
from memtune_runner.checkpoints import huggingface
from memtune_runner.integrations import huggingface_arguments
from memtune_runner.integrations.first_training import FirstAccelerator
from memtune_runner.integrations.learning_rate_schedule import Schedule
from memtune_runner.integrations.loaders import batch_size_of, in_micro_batches, is_in_order, training_loader
from memtune_runner.rank import phases
from memtune_runner.rank.failure_causes import of_exception
from memtune_runner.rank.ranks import own_directory

if TYPE_CHECKING:
    from memtune_runner.rank.imports import ImportWatch
    from memtune_runner.rank.patches import Patches
    from memtune_runner.rank.probe import Probe
    from memtune_runner.rank.progress import Trained
    from memtune_runner.rank.settings import Settings

Inherited = Callable[..., Any]


def install(
    settings: Settings, probe: Probe | None, imports: ImportWatch, patches: Patches, trained: Callable[[], Trained]
) -> Schedule:
    """Wrap Accelerator as soon as the script imports it. The result knows the length of the training."""
    huggingface_arguments.refuse(settings)
    first = FirstAccelerator(settings)
    prepared, schedule = Prepared(), Schedule(settings, lambda: trained().steps, first)
    if probe is not None:
        probe.at_the_end(lambda: prepared.evaluate_and_save(probe))

    def wrap_accelerator(module: Any) -> None:
        huggingface_arguments.leave_unwrapped(settings, module, patches)
        patches.wrap(module.Accelerator, "__init__", _init(settings, schedule))
        patches.wrap(module.Accelerator, "prepare", _prepare(settings, prepared, schedule, first))
        schedule.wrap_accelerator(module, patches)
        if probe is None:
            saving = huggingface.accelerate_save(settings, trained, first.keeps_saves_of)
            patches.wrap(module.Accelerator, "save_state", saving)
            loading = huggingface.accelerate_load(settings, first.is_of, lambda: schedule.has_stepped)
            patches.wrap(module.Accelerator, "load_state", loading)
        else:
            patches.wrap(module.Accelerator, "save_state", huggingface.probe_save)

    imports.when_imported("accelerate.data_loader", lambda module: schedule.wrap_loaders(module, patches))
    imports.when_imported(
        "accelerate.utils.memory", lambda module: huggingface_arguments.leave_out_of_memories(module, patches)
    )
    imports.when_imported("accelerate.accelerator", wrap_accelerator)
    if settings.device is Device.VIRTUAL:
        # Without GPUs, accelerate starts one rank each unless it is set to use the CPU.
        imports.when_imported("accelerate.state", lambda module: patches.wrap(module.PartialState, "__init__", _on_cpu))
    return schedule


class Prepared:
    """The objects that the script has prepared: the trained model, and a loader that is not trained on."""

    def __init__(self) -> None:
        self._accelerator: Any = None
        self._model: Any = None
        self._evaluation: Any = None
        self._saves_before = 0

    def add(self, accelerator: Any, model: Any, evaluation: Any) -> None:
        """Keep the results of one call of ``prepare``."""
        self._accelerator, self._saves_before = accelerator, phases.times_ended(Phase.SAVE)
        self._model = model if self._model is None else self._model
        self._evaluation = self._evaluation if evaluation is None else evaluation

    def evaluate_and_save(self, probe: Probe) -> None:
        """Evaluate one batch and save once; skip what the script has done, or what fails."""
        if self._evaluation is not None and not probe.evaluated:
            _tried("evaluate", self._evaluate)
        if self._accelerator is not None and phases.times_ended(Phase.SAVE) == self._saves_before:
            _tried("save", self._save)

    def _evaluate(self) -> None:
        import torch

        batch = next(iter(self._evaluation), None)
        if self._model is None or not isinstance(batch, Mapping):
            return  # only the script knows how to call its model with such a batch
        self._model.eval()
        with torch.no_grad():
            self._model(**batch)
        self._model.train()

    def _save(self) -> None:
        # Saved only to be measured: it must not be resumed from.
        directory = own_directory(os.environ) or Path(tempfile.gettempdir())
        self._accelerator.project_configuration.automatic_checkpoint_naming = False
        self._accelerator.save_state(str(directory / "probe-checkpoint"))


def _tried(what: str, act: Callable[[], None]) -> None:
    """Try an act in the script's place; if it fails, the report says that it is not covered."""
    try:
        act()
    except Exception as error:
        failure = of_exception(error)
        if failure.ending is not Ending.ERROR or failure.is_consequence:
            raise
        print(f"memtune: this probe could not {what} by itself: {failure.message}", file=sys.stderr, flush=True)


def _on_cpu(inherited: Inherited, state: Any, *_cpu: bool, **kwargs: Any) -> None:
    inherited(state, **{**kwargs, "cpu": True})  # also if the script passes it, by position or by name


def _init(settings: Settings, schedule: Schedule) -> Inherited:
    def init(inherited: Inherited, accelerator: Any, *args: Any, **kwargs: Any) -> None:
        if huggingface_arguments.reduces_on_host(settings.plan):
            # accelerate ignores the plugin when it chooses between NCCL alone and NCCL with gloo.
            os.environ["FSDP_OFFLOAD_PARAMS"] = "true"
        signature = inspect.signature(inherited)
        given = signature.bind(accelerator, *args, **kwargs)
        overrides = {
            **_overrides(settings),
            "gradient_accumulation_plugin": schedule.plugin(accelerator, given.arguments, os.environ),
            "gradient_accumulation_steps": 1,  # the plugin sets it, and overrides accelerate launch
        }
        given.arguments.update({name: each for name, each in overrides.items() if name in signature.parameters})
        inherited(*given.args, **given.kwargs)

    return init


def _overrides(settings: Settings) -> dict[str, Any]:
    plan = settings.plan
    return {
        "mixed_precision": huggingface_arguments.mixed_precision(plan),
        "deepspeed_plugin": _deepspeed_plugin(settings),
        "deepspeed_plugins": None,
        "fsdp_plugin": _fsdp_plugin(settings),
    }


def _deepspeed_plugin(settings: Settings) -> Any:
    config = huggingface_arguments.deepspeed(settings)
    if config is None:
        return None
    from accelerate.utils import DeepSpeedPlugin  # type: ignore[import-untyped]  # accelerate ships no types

    return DeepSpeedPlugin(hf_ds_config=config)


def _fsdp_plugin(settings: Settings) -> Any:
    if settings.plan.sharding.backend != "fsdp":
        return None
    from accelerate.utils import FullyShardedDataParallelPlugin

    return FullyShardedDataParallelPlugin(**huggingface_arguments.fsdp_plugin(settings))


def _prepare(settings: Settings, prepared: Prepared, schedule: Schedule, first: FirstAccelerator) -> Inherited:
    known: weakref.WeakSet[Any] = weakref.WeakSet()  # the models that were prepared

    def prepare(inherited: Inherited, accelerator: Any, *objects: Any, **kwargs: Any) -> Any:
        from torch.optim import Optimizer
        from torch.utils.data import DataLoader

        from memtune_runner.engine.activation_checkpointing import set_checkpointing

        models = trained_models(objects)
        has_optimizer = any(isinstance(each, Optimizer) for each in objects)
        if has_optimizer:
            is_new = schedule.has_trained and any(each not in known for each in models)
            first.prepares(accelerator, is_new)
            if is_new:
                schedule.begins_again(accelerator)
        known.update(models)
        for model in models:
            set_checkpointing(model, settings.plan.checkpointing)
        loaders = [each for each in objects if isinstance(each, DataLoader) and not _is_prepared(each)]
        # An ordered loader that is prepared alone, after the training loader, is for evaluation.
        takes_in_order = not schedule.follows or has_optimizer
        trained = training_loader(loaders, takes_in_order)
        changed = {id(each): _evaluated_less(each, settings, accelerator) for each in loaders}
        if trained is not None:
            changed[id(trained)] = _in_micro_batches(trained, settings, accelerator)
        given = [changed.get(id(each), each) for each in objects]
        result = inherited(accelerator, *given, **kwargs)
        # One result per object: a tuple, or under FSDP2 a list; for one object, the result itself.
        made = dict(zip(map(id, objects), result if len(objects) > 1 else (result,), strict=True))
        known.update(made[id(each)] for each in models)
        model = next(iter(models), None)
        if trained is not None:
            own_share = (batch_size_of(trained) or 0) * (settings.world // _sharing(accelerator))
            schedule.follow(accelerator, made[id(trained)], own_share)
        other = next((each for each in loaders if each is not trained), None)
        prepared.add(accelerator, made.get(id(model)), made.get(id(other)))
        return result

    return prepare


def trained_models(objects: Sequence[Any]) -> list[Any]:
    """Return the models that the optimizers in ``objects`` train; without an optimizer, all with trainable weights.

    The training mode does not tell: `from_pretrained` returns a model in evaluation mode; scripts call `train()` later.
    """
    from torch import nn
    from torch.optim import Optimizer

    models = [each for each in objects if isinstance(each, nn.Module)]
    groups = (group for each in objects if isinstance(each, Optimizer) for group in each.param_groups)
    stepped = {id(parameter) for group in groups for parameter in group["params"]}
    return [model for model in models if any(_is_trained(each, stepped) for each in model.parameters())]


def _is_trained(parameter: Any, stepped: set[int]) -> bool:
    return parameter.requires_grad and (not stepped or id(parameter) in stepped)


def _is_prepared(loader: Any) -> bool:
    return bool(getattr(loader, "_is_accelerate_prepared", False))


def _in_micro_batches(loader: Any, settings: Settings, accelerator: Any) -> Any:
    pad_to, sharing = settings.sequence_length if settings.is_probe else None, _sharing(accelerator)
    return in_micro_batches(loader, settings.plan.micro_batch * sharing, pad_to, settings.world // sharing)


def _evaluated_less(loader: Any, settings: Settings, accelerator: Any) -> Any:
    """Shrink the batches of an ordered loader below those in which an evaluation ran out of memory."""
    size = batch_size_of(loader)
    if settings.evaluation_batch is None or size is None or not is_in_order(loader):
        return loader
    return in_micro_batches(loader, min(size, settings.evaluation_batch * _sharing(accelerator)), None)


def _sharing(accelerator: Any) -> int:
    """Return the number of ranks that share one batch of a loader: all of them with split_batches."""
    return int(accelerator.num_processes) if accelerator.split_batches else 1
