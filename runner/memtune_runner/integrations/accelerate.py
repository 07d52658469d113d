"""The integration `accelerate`: the Accelerator is made as the plan says, its data comes in micro-batches."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from memtune_runner.checkpoints import huggingface
from memtune_runner.integrations import arguments
from memtune_runner.integrations.checkpointing import set_checkpointing
from memtune_runner.integrations.padding import PaddingCollator
from memtune_runner.probe import accumulation

if TYPE_CHECKING:
    from memtune_runner.settings import Settings
    from memtune_runner.watch.imports import ImportWatch
    from memtune_runner.watch.patches import Patches

Inherited = Callable[..., Any]


def install(settings: Settings, imports: ImportWatch, patches: Patches, steps: Callable[[], int]) -> None:
    """Wrap Accelerator as soon as the script imports it."""
    arguments.refuse(settings)

    def wrap_accelerator(module: Any) -> None:
        patches.wrap(module.Accelerator, "__init__", _init(settings))
        patches.wrap(module.Accelerator, "prepare", _prepare(settings))
        if not settings.is_probe:
            patches.wrap(module.Accelerator, "save_state", huggingface.accelerate_save(settings, steps))
            patches.wrap(module.Accelerator, "load_state", huggingface.accelerate_load(settings))

    imports.when_imported("accelerate.accelerator", wrap_accelerator)


def _init(settings: Settings) -> Inherited:
    def init(inherited: Inherited, accelerator: Any, *args: Any, **kwargs: Any) -> None:
        signature = inspect.signature(inherited)
        given = signature.bind(accelerator, *args, **kwargs)
        overrides = _overrides(settings)
        given.arguments.update({name: each for name, each in overrides.items() if name in signature.parameters})
        inherited(*given.args, **given.kwargs)

    return init


def _overrides(settings: Settings) -> dict[str, Any]:
    plan = settings.plan
    return {
        "mixed_precision": arguments.mixed_precision(plan),
        "gradient_accumulation_steps": accumulation(settings),
        "gradient_accumulation_plugin": None,
        "deepspeed_plugin": _deepspeed_plugin(settings),
        "deepspeed_plugins": None,
        "fsdp_plugin": _fsdp_plugin(settings),
    }


def _deepspeed_plugin(settings: Settings) -> Any:
    config = arguments.deepspeed(settings)
    if config is None:
        return None
    from accelerate.utils import DeepSpeedPlugin  # type: ignore[import-untyped]  # accelerate ships no types

    return DeepSpeedPlugin(hf_ds_config=config)


def _fsdp_plugin(settings: Settings) -> Any:
    if settings.plan.sharding.backend != "fsdp":
        return None
    from accelerate.utils import FullyShardedDataParallelPlugin

    return FullyShardedDataParallelPlugin(**arguments.fsdp_plugin(settings))


def _prepare(settings: Settings) -> Inherited:
    def prepare(inherited: Inherited, accelerator: Any, *objects: Any, **kwargs: Any) -> Any:
        from torch import nn
        from torch.utils.data import DataLoader

        for model in (each for each in objects if isinstance(each, nn.Module) and each.training):
            set_checkpointing(model, settings.plan)
        trained = _training_loader([each for each in objects if isinstance(each, DataLoader)])
        objects = tuple(_in_micro_batches(each, settings, accelerator) if each is trained else each for each in objects)
        return inherited(accelerator, *objects, **kwargs)

    return prepare


def _training_loader(loaders: list[Any]) -> Any:
    """Of several loaders the one that is trained on: the first that shuffles, else the first."""
    from torch.utils.data import SequentialSampler

    shuffling = (each for each in loaders if not isinstance(each.sampler, SequentialSampler))
    return next(shuffling, loaders[0] if loaders else None)


def _in_micro_batches(loader: Any, settings: Settings, accelerator: Any) -> Any:
    """The same loader with the plan's micro-batch, and in a probe with the job's sequence length."""
    if loader.batch_size is None:
        return loader  # the script makes its own batches; what it makes is seen at the model's forward
    from torch.utils.data import DataLoader

    collate = loader.collate_fn
    return DataLoader(
        loader.dataset,
        # With split_batches one batch is shared by all ranks.
        batch_size=settings.plan.micro_batch * (accelerator.num_processes if accelerator.split_batches else 1),
        sampler=loader.sampler,
        collate_fn=PaddingCollator(collate, settings.sequence_length) if settings.is_probe else collate,
        num_workers=loader.num_workers,
        pin_memory=loader.pin_memory,
        drop_last=loader.drop_last,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=loader.generator,
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
    )
