"""The integration `lightning`: builds PyTorch Lightning's Trainer and Fabric from the plan.

It supports both names of the package: `lightning`, and `pytorch_lightning` with `lightning_fabric`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from memtune.wire.report import Device
from memtune_runner.integrations.lightning import fabric, strategies, trainer
from memtune_runner.rank.training_length import LibraryLength

if TYPE_CHECKING:
    from memtune_runner.rank.imports import ImportWatch
    from memtune_runner.rank.patches import Patches
    from memtune_runner.rank.probe import Probe
    from memtune_runner.rank.progress import Trained
    from memtune_runner.rank.settings import Settings

_TRAINERS = ("lightning.pytorch", "pytorch_lightning")
_FABRICS = ("lightning.fabric", "lightning_fabric")


def install(
    settings: Settings,
    probe: Probe | None,
    imports: ImportWatch,
    patches: Patches,
    trained: Callable[..., Trained],
    counted: Callable[[], int],
) -> LibraryLength:
    """Wrap Trainer and Fabric as soon as the script imports them."""
    strategies.refuse(settings)
    length = LibraryLength()
    for package in _TRAINERS:
        fits = trainer.FitLength(settings, length, counted)
        trainer.install(package, settings, probe, imports, patches, fits, trained)
    for package in _FABRICS:
        fabric.install(package, settings, probe, imports, patches, trained, length)
    if settings.device is Device.VIRTUAL:
        _let_deepspeed_run_on_cpu(imports, patches)
    return length


def _let_deepspeed_run_on_cpu(imports: ImportWatch, patches: Patches) -> None:
    """Let Lightning start DeepSpeed on CPU tensors; Lightning itself requires CUDA and a device index."""

    def wrap_strategy(module: Any) -> None:
        strategy = module.DeepSpeedStrategy
        patches.replace(strategy, "setup_environment", super(strategy, strategy).setup_environment)
        patches.replace(module, "_validate_device_index_selection", lambda _: None)

    def wrap_engine(module: Any) -> None:
        # Without arguments it takes the local rank.
        engine = module.DeepSpeedEngine
        patches.wrap(engine, "_set_distributed_vars", lambda inherited, made, _: inherited(made, None))

    for package in (*_TRAINERS, *_FABRICS):
        imports.when_imported(f"{package}.strategies.deepspeed", wrap_strategy)
    imports.when_imported("deepspeed.runtime.engine", wrap_engine)
