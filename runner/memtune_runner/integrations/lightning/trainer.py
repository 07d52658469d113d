"""Lightning's Trainer: its arguments, its data in micro-batches, its checkpoints, and the end of a probe."""

from __future__ import annotations

import importlib
import inspect
import math
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from memtune_runner.bad_input import BadInputError
from memtune_runner.checkpoints import lightning, manifest
from memtune_runner.integrations.checkpointing import set_checkpointing
from memtune_runner.integrations.lightning import strategies
from memtune_runner.integrations.loaders import in_micro_batches
from memtune_runner.probe import accumulation

if TYPE_CHECKING:
    from memtune_runner.probe import Probe
    from memtune_runner.settings import Settings
    from memtune_runner.watch.imports import ImportWatch
    from memtune_runner.watch.patches import Patches

Inherited = Callable[..., Any]
# Callbacks that decide on what the plan decides.
_CONTRADICTING = ("GradientAccumulationScheduler", "BatchSizeFinder")


def install(package: str, settings: Settings, probe: Probe | None, imports: ImportWatch, patches: Patches) -> None:
    """Wrap the Trainer of one of the two packages."""

    def wrap_trainer(module: Any) -> None:
        fits = _Fits(settings)
        patches.wrap(module.Trainer, "__init__", _init(settings, probe, package, fits))
        patches.wrap(module.Trainer, "fit", _fit(settings, probe, fits))
        saving = lightning.trainer_save(settings, fits.keeps_saves) if probe is None else lightning.save_aside
        patches.wrap(module.Trainer, "save_checkpoint", saving)

    def wrap_data(module: Any) -> None:
        patches.wrap(module, "_process_dataloader", _process(settings))

    def wrap_loop(module: Any) -> None:
        patches.wrap(module._FitLoop, "run", _run_loop(settings))

    imports.when_imported(f"{package}.trainer.trainer", wrap_trainer)
    imports.when_imported(f"{package}.loops.fit_loop", wrap_loop)
    imports.when_imported(f"{package}.trainer.connectors.data_connector", wrap_data)


class _Fits:
    """The calls of ``fit`` in this process: the first resumes, and its saves are those that are resumed from.

    A checkpoint does not say which call it is of. A relaunched script makes its later trainings anew.
    """

    def __init__(self, settings: Settings) -> None:
        self._saves_are_missed = settings.checkpoint_path is not None
        self._has_ended = False
        self.is_first = True

    def begins(self) -> None:
        """A call begins. What the script saves between two belongs to the one before."""
        self.is_first = not self._has_ended

    def ended(self, trainer: Any) -> None:
        """A call has returned; that of a Tuner, which trains nothing, is none."""
        if not any(getattr(each, "_early_exit", False) for each in trainer.callbacks):
            self._has_ended = True

    def keeps_saves(self) -> bool:
        """Whether a save is resumed from; says so once if it is not."""
        if not self.is_first and self._saves_are_missed:
            self._saves_are_missed = False
            print(
                "memtune: of several calls of Trainer.fit only the first resumes from its checkpoints: a relaunch "
                "makes the trainings after it anew; train each one in a job of its own to resume it as well",
                file=sys.stderr,
            )
        return self.is_first


def _init(settings: Settings, probe: Probe | None, package: str, fits: _Fits) -> Inherited:
    def init(inherited: Inherited, trainer: Any, *args: Any, **asked: Any) -> None:
        callbacks = asked.get("callbacks") or []
        callbacks = list(callbacks) if isinstance(callbacks, (list, tuple)) else [callbacks]
        _check(callbacks)
        strategies.use_tf32(settings.plan)
        overrides = strategies.overrides(settings, package, asked)
        if probe is not None:
            probe.defer()
            overrides |= _of_probe(settings, asked)
        overrides["accumulate_grad_batches"] = accumulation(settings)
        overrides["callbacks"] = [*callbacks, _callback(settings, probe, package, fits)]
        inherited(trainer, *args, **{**asked, **overrides})
        _checkpoint_before_setup(trainer.strategy, settings)

    return init


def _check(callbacks: list[Any]) -> None:
    for each in callbacks:
        if type(each).__name__ in _CONTRADICTING:
            raise BadInputError(
                f"the Trainer has the callback {type(each).__name__}, and what it changes is the plan's to say; leave "
                "it out of the script"
            )


def _of_probe(settings: Settings, asked: dict[str, Any]) -> dict[str, Any]:
    """One batch of validation behind the last step, and none before the first."""
    values: dict[str, Any] = {"num_sanity_val_steps": 0}
    if asked.get("limit_val_batches") != 0:
        interval = (settings.probe_steps or 1) * accumulation(settings)
        values |= {"limit_val_batches": 1, "val_check_interval": interval, "check_val_every_n_epoch": None}
    return values


def _checkpoint_before_setup(strategy: Any, settings: Settings) -> None:
    """Checkpoint the blocks just before the strategy wraps them: ``configure_model`` may make the model."""
    inherited, done = strategy.setup, list[Any]()

    def setup(trainer: Any) -> None:
        module = trainer.lightning_module
        if trainer.state.fn.value == "fit" and module not in done:
            set_checkpointing(module, settings.plan)
            done.append(module)
        inherited(trainer)

    strategy.setup = setup


def _fit(settings: Settings, probe: Probe | None, fits: _Fits) -> Inherited:
    def fit(inherited: Inherited, trainer: Any, *args: Any, **kwargs: Any) -> None:
        signature = inspect.signature(inherited)
        given = signature.bind(trainer, *args, **kwargs)
        _check_optimization(given.arguments["model"], settings)
        fits.begins()
        if probe is not None:
            given.arguments["ckpt_path"] = None
        elif fits.is_first:
            given.arguments["ckpt_path"] = lightning.resume_from(settings, given.arguments.get("ckpt_path"))
            if settings.resume_from is not None and "weights_only" in signature.parameters:
                given.arguments["weights_only"] = False  # written by the attempt before: it holds more than tensors
        inherited(*given.args, **given.kwargs)
        fits.ended(trainer)
        if probe is not None:
            probe.finish()

    return fit


def _check_optimization(module: Any, settings: Settings) -> None:
    if not getattr(module, "automatic_optimization", True) and settings.plan.accumulation > 1:
        raise BadInputError(
            f"{type(module).__name__} has automatic_optimization = False: it steps by itself, and no Trainer can let "
            f"it accumulate the {settings.plan.accumulation} micro-batches of plan {settings.plan}; remove that line, "
            "or use integration sdk"
        )


def _callback(settings: Settings, probe: Probe | None, package: str, fits: _Fits) -> Any:
    base = importlib.import_module(f"{package}.callbacks").Callback

    class FollowPlan(base):  # type: ignore[misc, valid-type]  # what Lightning is there decides on the base
        """Ends a probe with one batch of validation and one save; says in the plan's batches where a resume goes on."""

        def on_validation_end(self, trainer: Any, _module: Any) -> None:
            self._end(trainer)

        def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
            self._end(trainer)

        def on_load_checkpoint(self, trainer: Any, _module: Any, checkpoint: dict[str, Any]) -> None:
            if settings.resume_from is not None and fits.is_first and trainer.state.fn.value == "fit":
                _recount(checkpoint, settings)

        def _end(self, trainer: Any) -> None:
            if probe is not None and probe.has_enough:
                trainer.save_checkpoint("probe.ckpt")
                probe.finish()

    return FollowPlan()


def _recount(checkpoint: dict[str, Any], settings: Settings) -> None:
    from memtune_runner.integrations.lightning.progress import Cut, recounted

    assert settings.resume_from is not None  # the caller has asked
    saved = manifest.read(settings.resume_from)
    loop = checkpoint["loops"]["fit_loop"]
    name = "epoch_loop.batch_progress"
    cuts = Cut.of(saved.plan, saved.world), Cut.of(settings.plan, settings.world)
    loop[name] = recounted(loop[name], *cuts, across_epochs=saved.plan.sharding.backend == "deepspeed")


def _process(settings: Settings) -> Inherited:
    """Of ``_process_dataloader``, behind which a loader has its sampler for several ranks."""
    scaled: list[Any] = []

    def process(inherited: Inherited, trainer: Any, trainer_fn: Any, stage: Any, dataloader: Any) -> Any:
        from torch.utils.data import DataLoader

        loader = inherited(trainer, trainer_fn, stage, dataloader)
        if not isinstance(loader, DataLoader):
            return loader
        asked = getattr(loader.batch_sampler, "batch_size", 1)
        pad_to = settings.sequence_length if settings.is_probe else None
        if stage.value != "train":
            return in_micro_batches(loader, min(asked, settings.evaluation_batch or asked), pad_to)
        changed = in_micro_batches(loader, settings.plan.micro_batch, pad_to)
        if trainer not in scaled:
            scaled.append(trainer)
            _scale_limits(trainer, asked / getattr(changed.batch_sampler, "batch_size", asked), settings)
        _go_on(changed, trainer, settings)
        return changed

    return process


def _run_loop(settings: Settings) -> Inherited:
    def run(inherited: Inherited, loop: Any) -> None:
        if settings.resume_from is not None:
            # A scheduler that asked for the number of steps had the loaders made, to begin at the epoch's start.
            loop._combined_loader = None
        inherited(loop)

    return run


def _scale_limits(trainer: Any, factor: float, settings: Settings) -> None:
    """Limits that count batches are the script's, in batches of its own size; no sample may be left out for that."""
    names = ["limit_train_batches"] if settings.is_probe else ["limit_train_batches", "val_check_interval"]
    for name in names:
        limit = getattr(trainer, name, None)
        if isinstance(limit, int):
            setattr(trainer, name, math.ceil(limit * factor))


def _go_on(loader: Any, trainer: Any, settings: Settings) -> None:
    from memtune_runner.integrations.lightning.progress import goes_on

    loop = trainer.fit_loop
    batches = loop.epoch_loop.batch_progress
    skipped = 0 if settings.resume_from is None or batches.is_last_batch else batches.current.processed
    goes_on(loader, loop.epoch_progress.current.processed, skipped)
