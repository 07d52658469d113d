"""Applies a plan to Lightning's Trainer: arguments, micro-batches, checkpoints, and the end of a probe."""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from memtune_runner.checkpoints import lightning, manifest
from memtune_runner.integrations.first_training import FirstTraining
from memtune_runner.integrations.lightning import strategies
from memtune_runner.integrations.loaders import batch_size_of, in_micro_batches, samples_of_pass
from memtune_runner.rank.bad_input import BadInputError
from memtune_runner.rank.probe import accumulation
from memtune_runner.rank.training_length import Epoch, LibraryLength, Training

if TYPE_CHECKING:
    from memtune_runner.rank.imports import ImportWatch
    from memtune_runner.rank.patches import Patches
    from memtune_runner.rank.probe import Probe
    from memtune_runner.rank.progress import Trained
    from memtune_runner.rank.settings import Settings

Inherited = Callable[..., Any]
# Callbacks that would override the plan.
_CONTRADICTING = ("GradientAccumulationScheduler", "BatchSizeFinder")


def install(
    package: str,
    settings: Settings,
    probe: Probe | None,
    imports: ImportWatch,
    patches: Patches,
    length: FitLength,
    trained: Callable[[int], Trained],
) -> None:
    """Wrap the Trainer of one of the two packages."""

    def wrap_trainer(module: Any) -> None:
        fits = FirstTraining(settings, "Trainer.fit")
        patches.wrap(module.Trainer, "__init__", _init(settings, probe, package, fits, length))
        patches.wrap(module.Trainer, "fit", _fit(settings, probe, fits, length))
        kept = lightning.trainer_save(settings, fits.keeps_saves, trained)
        saving = kept if probe is None else lightning.save_aside
        patches.wrap(module.Trainer, "save_checkpoint", saving)

    def wrap_data(module: Any) -> None:
        patches.wrap(module, "_process_dataloader", _process(settings, length))

    def wrap_loop(module: Any) -> None:
        patches.wrap(module._FitLoop, "run", _run_loop(settings))

    imports.when_imported(f"{package}.trainer.trainer", wrap_trainer)
    imports.when_imported(f"{package}.loops.fit_loop", wrap_loop)
    imports.when_imported(f"{package}.trainer.connectors.data_connector", wrap_data)


class FitLength:
    """The length of ``fit`` calls. ``counted`` returns the samples that this rank has trained in this process."""

    def __init__(self, settings: Settings, length: LibraryLength, counted: Callable[[], int]) -> None:
        self._settings, self._length, self._counted = settings, length, counted
        self._before = 0
        self.own_accumulation = 1

    def script_batches(self, size: int | None) -> None:
        """Record the batch size of the script's own training loader on each rank."""
        self._length.own_batch = size * self.own_accumulation * self._settings.world if size else None

    def fit_begins(self) -> None:
        """Begin ``fit``; what is trained before the training itself begins, as in a learning-rate search, is undone."""
        self._before, self._length.is_over = self._counted(), False

    def fit_ended(self) -> None:
        """End ``fit``, which trained."""
        self._length.is_over = True

    def discard(self) -> None:
        """Discard the samples trained since the call of ``fit`` began."""
        self._length.discarded_samples += self._counted() - self._before
        self._before = self._counted()

    def training_begins(self, trainer: Any) -> None:
        """Record the number of steps, which Lightning knows now; it counts the steps of each optimizer."""
        self.discard()
        steps = trainer.estimated_stepping_batches
        if len(trainer.optimizers) != 1 or not 0 <= steps < math.inf:
            return
        plan = self._settings.plan
        per_step, resumed = plan.micro_batch * plan.accumulation, int(trainer.global_step)
        made = partial(getattr, trainer, "global_step")
        self._length.begins(Training(int(steps), resumed, made, per_step, self._epoch(trainer)))

    def _epoch(self, trainer: Any) -> Epoch | None:
        loaders, batches = trainer.fit_loop._combined_loader.flattened, trainer.num_training_batches
        # DeepSpeed's steps continue across epochs.
        if len(loaders) != 1 or batches == math.inf or self._settings.plan.sharding.backend == "deepspeed":
            return None
        samples = samples_of_pass(loaders[0], int(batches))
        return None if samples is None else Epoch(math.ceil(batches / self._settings.plan.accumulation), samples)


def _init(settings: Settings, probe: Probe | None, package: str, fits: FirstTraining, length: FitLength) -> Inherited:
    def init(inherited: Inherited, trainer: Any, *args: Any, **asked: Any) -> None:
        callbacks = asked.get("callbacks") or []
        callbacks = list(callbacks) if isinstance(callbacks, (list, tuple)) else [callbacks]
        _check(callbacks)
        strategies.use_tf32(settings.plan)
        overrides = strategies.overrides(settings, package, asked)
        if probe is not None:
            probe.defer()
            overrides |= _of_probe(settings, asked)
        length.own_accumulation = asked.get("accumulate_grad_batches") or 1
        overrides["accumulate_grad_batches"] = accumulation(settings)
        overrides["callbacks"] = [*callbacks, _callback(settings, probe, package, fits, length)]
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
    """Return arguments for one validation batch after the last step and none before the first."""
    values: dict[str, Any] = {"num_sanity_val_steps": 0}
    if asked.get("limit_val_batches") != 0:
        interval = (settings.probe_steps or 1) * accumulation(settings)
        values |= {"limit_val_batches": 1, "val_check_interval": interval, "check_val_every_n_epoch": None}
    return values


def _checkpoint_before_setup(strategy: Any, settings: Settings) -> None:
    """Checkpoint the blocks just before the strategy wraps them, since ``configure_model`` may create the model."""
    inherited, done = strategy.setup, list[Any]()

    def setup(trainer: Any) -> None:
        from memtune_runner.engine.activation_checkpointing import set_checkpointing

        module = trainer.lightning_module
        if trainer.state.fn.value == "fit" and module not in done:
            set_checkpointing(module, settings.plan.checkpointing)
            done.append(module)
        inherited(trainer)

    strategy.setup = setup


def _fit(settings: Settings, probe: Probe | None, fits: FirstTraining, length: FitLength) -> Inherited:
    def fit(inherited: Inherited, trainer: Any, *args: Any, **kwargs: Any) -> None:
        signature = inspect.signature(inherited)
        given = signature.bind(trainer, *args, **kwargs)
        _check_optimization(given.arguments["model"], settings)
        fits.begins()
        length.fit_begins()
        if probe is not None:
            given.arguments["ckpt_path"] = None
        elif fits.is_current:
            given.arguments["ckpt_path"] = lightning.resume_from(settings, given.arguments.get("ckpt_path"))
            if settings.resume_from is not None and "weights_only" in signature.parameters:
                given.arguments["weights_only"] = False  # the previous attempt's file holds more than tensors
        inherited(*given.args, **given.kwargs)
        if _is_tuners(trainer):
            length.discard()
        else:
            fits.ended()
            length.fit_ended()
        if probe is not None:
            probe.finish()

    return fit


def _is_tuners(trainer: Any) -> bool:
    """Whether a Tuner called ``fit``; it undoes what it trains."""
    return any(getattr(each, "_early_exit", False) for each in trainer.callbacks)


def _check_optimization(module: Any, settings: Settings) -> None:
    if not getattr(module, "automatic_optimization", True) and settings.plan.accumulation > 1:
        raise BadInputError(
            f"{type(module).__name__} has automatic_optimization = False: it steps by itself, and no Trainer can let "
            f"it accumulate the {settings.plan.accumulation} micro-batches of plan {settings.plan}; set "
            f"tuning.space.microBatch [{settings.global_batch // settings.world}] for plans that do not accumulate"
        )


def _callback(settings: Settings, probe: Probe | None, package: str, fits: FirstTraining, length: FitLength) -> Any:
    base = importlib.import_module(f"{package}.callbacks").Callback

    class FollowPlan(base):  # type: ignore[misc, valid-type]  # what Lightning is there decides on the base
        """Ends a probe with one batch of validation and one save; says in the plan's batches where a resume goes on."""

        def on_train_start(self, trainer: Any, _module: Any) -> None:
            length.training_begins(trainer)

        def on_validation_end(self, trainer: Any, _module: Any) -> None:
            self._end(trainer)

        def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
            self._end(trainer)

        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            if probe is not None:
                _batch_ended(probe, trainer)

        def on_load_checkpoint(self, trainer: Any, _module: Any, checkpoint: dict[str, Any]) -> None:
            if settings.resume_from is not None and fits.is_current and trainer.state.fn.value == "fit":
                _recount(checkpoint, settings)

        def _end(self, trainer: Any) -> None:
            if probe is not None and probe.has_enough:
                trainer.save_checkpoint("probe.ckpt")
                probe.finish()

    return FollowPlan()


def _batch_ended(probe: Probe, trainer: Any) -> None:
    is_last_epoch = trainer.current_epoch + 1 == trainer.max_epochs
    if 0 <= trainer.max_steps <= trainer.global_step or (trainer.is_last_batch and is_last_epoch):
        probe.training_ends()
    if probe.has_enough:
        # Validation may have been scheduled after steps that are not made.
        trainer.val_check_batch = trainer.fit_loop.total_batch_idx + 1


def _recount(checkpoint: dict[str, Any], settings: Settings) -> None:
    from memtune_runner.integrations.lightning.progress import Cut, recounted

    assert settings.resume_from is not None  # checked by the caller
    saved = manifest.read_complete(settings.resume_from)
    loop = checkpoint["loops"]["fit_loop"]
    name = "epoch_loop.batch_progress"
    cuts = Cut.of(saved.plan, saved.world), Cut.of(settings.plan, settings.world)
    loop[name] = recounted(loop[name], *cuts, across_epochs=saved.plan.sharding.backend == "deepspeed")


def _process(settings: Settings, length: FitLength) -> Inherited:
    """Return the wrapper of ``_process_dataloader``, after which a loader has its distributed sampler."""
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
        length.script_batches(batch_size_of(loader))
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
            # A scheduler that queried the number of steps created the loaders, at the epoch's start.
            loop._combined_loader = None
        inherited(loop)

    return run


def _scale_limits(trainer: Any, factor: float, settings: Settings) -> None:
    """Scale the script's limits, which count batches of its own size, without dropping a sample."""
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
