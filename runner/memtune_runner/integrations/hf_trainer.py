"""The integration `hf-trainer`: builds TrainingArguments from the plan; a probe evaluates and saves once."""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memtune_runner.checkpoints import huggingface
from memtune_runner.checkpoints.optimizer_kernel import keep_kernel
from memtune_runner.integrations import batch_losses, huggingface_arguments, own_losses
from memtune_runner.integrations.first_training import FirstTraining
from memtune_runner.integrations.loaders import batch_size_of, samples_of_pass
from memtune_runner.integrations.padding_collator import PaddingCollator
from memtune_runner.rank import library_step, script_warnings
from memtune_runner.rank.bad_input import BadInputError
from memtune_runner.rank.batch_size import batch_size
from memtune_runner.rank.ranks import own_directory
from memtune_runner.rank.training_length import Epoch, LibraryLength, Training

if TYPE_CHECKING:
    from memtune_runner.rank.imports import ImportWatch
    from memtune_runner.rank.patches import Patches
    from memtune_runner.rank.probe import Probe
    from memtune_runner.rank.progress import Trained
    from memtune_runner.rank.settings import Settings

Inherited = Callable[..., Any]
_STATE = "trainer_state.json"
_OWN_BATCH = "_memtune_own_batch"  # of a script's TrainingArguments
_ACCUMULATION = "_memtune_accumulation"  # of a Trainer that is about to make the last step of a pass
_AVERAGED = "_memtune_averaged"  # of a Trainer whose loss is divided by the accumulation, and may be a sum


def install(
    settings: Settings,
    probe: Probe | None,
    imports: ImportWatch,
    patches: Patches,
    trained: Callable[[int], Trained],
) -> LibraryLength:
    """Wrap TrainingArguments and Trainer as soon as the script imports them."""
    huggingface_arguments.refuse(settings)
    length, first = LibraryLength(), FirstTraining(settings, "Trainer.train")
    if probe is not None:
        probe.defer()

    def wrap_arguments(module: Any) -> None:
        patches.wrap(module.TrainingArguments, "__post_init__", _post_init(settings))

    def wrap_trainer(module: Any) -> None:
        patches.wrap(module.Trainer, "__init__", _init(settings, probe, length, module.Trainer.compute_loss))
        patches.wrap(module.Trainer, "training_step", _training_step)
        patches.wrap(module.Trainer, "get_batch_samples", _step_at_end)
        patches.wrap(module.Trainer, "create_optimizer", _create_optimizer)
        patches.wrap(module.Trainer, "train", _train(settings, probe, first, length))
        patches.wrap(module.Trainer, "_hp_search_setup", _hp_search_setup(settings))
        patches.wrap(module.TrainerState, "load_from_json", huggingface.state_of_plan(settings))
        if settings.resume_from is not None:
            patches.wrap(module.Trainer, "get_batch_samples", _no_batches_behind_the_end)
        if probe is None:
            rotate = getattr(module, "rotate_checkpoints", None)
            saving = huggingface.trainer_save(settings, rotate, first.keeps_saves, trained)
            patches.wrap(module.Trainer, "_save_checkpoint", saving)
        else:
            patches.wrap(module.Trainer, "_save_checkpoint", huggingface.probe_save)
            patches.wrap(module.Trainer, "get_eval_dataloader", _one_evaluation_batch)

    imports.when_imported(
        "accelerate.accelerator", lambda module: huggingface_arguments.leave_unwrapped(settings, module, patches)
    )
    imports.when_imported(
        "accelerate.utils.memory", lambda module: huggingface_arguments.leave_out_of_memories(module, patches)
    )
    imports.when_imported("transformers.training_args", wrap_arguments)
    imports.when_imported("transformers.trainer", wrap_trainer)
    return length


def first_max_steps(resume_from: Path | None) -> int | None:
    """Return the steps that the first attempt planned; another micro-batch would round them differently."""
    if resume_from is None:
        return None
    try:
        steps = json.loads((resume_from / _STATE).read_text(encoding="utf-8")).get("max_steps")
    except (OSError, ValueError):
        return None
    return steps if isinstance(steps, int) and steps > 0 else None


def _post_init(settings: Settings) -> Inherited:
    def post_init(inherited: Inherited, args: Any) -> None:
        setattr(args, _OWN_BATCH, args.per_device_train_batch_size)
        if settings.checkpoint_path is not None and getattr(args, "save_only_model", False):
            script_warnings.warn(
                "save_only_model is taken for False, since a resumed training needs its optimizer: checkpoints are "
                "larger than the script asks, and trainer.save_model saves the model alone",
                once="save_only_model",
            )
        for name, value in _overrides(settings).items():
            if hasattr(args, name):  # a field of another version of transformers
                setattr(args, name, value)
        if settings.evaluation_batch is not None:
            _evaluate_less(args, settings.evaluation_batch)
        inherited(args)
        if settings.is_probe:
            args.load_best_model_at_end = False  # only now: it has chosen the metric, which early stopping demands

    return post_init


def _evaluate_less(args: Any, batch: int) -> None:
    """Shrink evaluation batches below the one that ran out of memory, and move their outputs to the host."""
    args.per_device_eval_batch_size = min(args.per_device_eval_batch_size, batch)
    args.eval_accumulation_steps = args.eval_accumulation_steps or 1


def _overrides(settings: Settings) -> dict[str, Any]:
    values = huggingface_arguments.training_arguments(settings)
    if settings.checkpoint_path is not None:
        # A relaunch would resume from the weights alone, with a new optimizer and the schedule's first learning rate.
        values |= {"save_only_model": False}
    if settings.is_probe:
        # A probe's save is only measured: it must not be resumed from or uploaded.
        directory = own_directory(os.environ) or Path(tempfile.gettempdir())
        values |= {"output_dir": str(directory / "probe-checkpoint"), "push_to_hub": False}
    return values


def _init(settings: Settings, probe: Probe | None, length: LibraryLength, compute_loss: Any) -> Inherited:
    def init(inherited: Inherited, trainer: Any, *args: Any, **kwargs: Any) -> None:
        from memtune_runner.engine.activation_checkpointing import set_checkpointing

        inherited(trainer, *args, **kwargs)
        own = type(trainer).compute_loss
        if (
            trainer.compute_loss_func is None
            and _unsaid(trainer)
            and getattr(trainer, "model_accepts_loss_kwargs", False)  # of another version of transformers
            and not _is_weighed(trainer, own, compute_loss)
        ):
            # Else the Trainer would take it for divided by the tokens of a whole step, and not divide it at all.
            trainer.model_accepts_loss_kwargs = False
            if own is not compute_loss and own_losses.reduces_by_sum(own):
                setattr(trainer, _AVERAGED, f"{type(trainer).__name__}.compute_loss")
        set_checkpointing(trainer.model, settings.plan.checkpointing)
        if probe is not None:
            trainer.data_collator = PaddingCollator(trainer.data_collator, settings.sequence_length)
            trainer.add_callback(_probe_callback(probe, trainer))
        else:
            trainer.add_callback(_length_callback(settings, trainer, length))

    return init


def _is_weighed(trainer: Any, own: Any, compute_loss: Any) -> bool:
    """Whether the loss is weighed by its step: that of the script's own function, of the model, or of both in turn."""
    if own is not compute_loss and not own_losses.weighs(own):
        return False
    asks_model = own is compute_loss or own_losses.calls_inherited(own)
    return not asks_model or _model_weighs(trainer)


def _model_weighs(trainer: Any) -> bool:
    """Whether the loss that the Trainer takes from its model, or makes by label smoothing, is weighed by its step."""
    model = getattr(trainer.model, "get_base_model", lambda: trainer.model)()  # below PEFT's
    says_so = getattr(model, "accepts_loss_kwargs", False)
    return says_so or trainer.label_smoother is not None or own_losses.model_weighs(model.forward)


def _unsaid(trainer: Any) -> bool:
    """Whether the script leaves it to the Trainer if its loss is divided by the accumulation."""
    return getattr(trainer, "loss_is_scaled_for_ga", None) is None


def _warn_of_average(trainer: Any) -> None:
    """Say what is done to a loss that may be a sum; only now is the Trainer as the script's `__init__` has left it."""
    own, accumulation = getattr(trainer, _AVERAGED, None), trainer.args.gradient_accumulation_steps
    if own is not None and accumulation > 1 and _unsaid(trainer) and not trainer.model_accepts_loss_kwargs:
        script_warnings.warn(
            f"the loss of {own} is averaged over the {accumulation} micro-batches of a step, since it does not read "
            "num_items_in_batch: right for a mean, but a sum must read it, or divide by itself and set "
            "loss_is_scaled_for_ga",
            once="average of losses",
        )


def _training_step(inherited: Inherited, trainer: Any, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
    if (accumulation := vars(trainer).pop(_ACCUMULATION, None)) is not None:
        trainer.args.gradient_accumulation_steps = accumulation
    with library_step.during(_rows_of_sample(trainer, inputs)):
        return inherited(trainer, model, inputs, *args, **kwargs)


class _LastBatches(list[Any]):
    """The last micro-batches of a pass, fewer than the Trainer has asked for, which still make a step.

    The Trainer knows the last step of a pass by its length. A stream has no length, so it would add up the gradients
    with those of the next pass. It decides if it steps by the accumulation in its arguments, which is 1 while it has
    the last of them, until `training_step`. It also calls the callbacks' `on_step_begin` once more.
    """

    def __init__(self, batches: list[Any], trainer: Any) -> None:
        super().__init__(batches)
        self._trainer = trainer
        self._accumulation = trainer.args.gradient_accumulation_steps

    def __iter__(self) -> Iterator[Any]:
        *before, last = super().__iter__()
        yield from before
        args = self._trainer.args
        setattr(self._trainer, _ACCUMULATION, self._accumulation)
        args.gradient_accumulation_steps = 1
        try:
            yield last
        finally:  # a script's own `training_step` may not call the Trainer's
            args.gradient_accumulation_steps = self._accumulation
            vars(self._trainer).pop(_ACCUMULATION, None)


def _step_at_end(inherited: Inherited, trainer: Any, batches: Any, asked: int, *args: Any, **kwargs: Any) -> Any:
    taken, *others = inherited(trainer, batches, asked, *args, **kwargs)
    return (_LastBatches(taken, trainer) if 0 < len(taken) < asked else taken, *others)


def _rows_of_sample(trainer: Any, inputs: Any) -> int:
    """Return the rows per sample, above 1 if the collator makes several: a full batch has a multiple of its samples."""
    size = batch_size((inputs,), {})
    samples = getattr(trainer.callback_handler.train_dataloader, "total_batch_size", None)
    if size is None or not samples:
        return 1
    rows, rest = divmod(size.rows, samples // trainer.accelerator.num_processes)
    return library_step.rows_of_sample() if rest or not rows else rows


def _create_optimizer(inherited: Inherited, trainer: Any, *args: Any, **kwargs: Any) -> Any:
    is_scripts = trainer.optimizer is not None
    optimizer = inherited(trainer, *args, **kwargs)
    if not is_scripts:
        keep_kernel(optimizer)
    return optimizer


def _train(settings: Settings, probe: Probe | None, first: FirstTraining, length: LibraryLength) -> Inherited:
    def train(inherited: Inherited, trainer: Any, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        own_batch = getattr(trainer.args, _OWN_BATCH, None)
        batch_losses.warn_of(getattr(trainer, "loss", None), settings.plan.micro_batch, own_batch)
        _warn_of_average(trainer)
        if probe is not None:
            inherited(trainer, None, *args, **kwargs)
            probe.finish()
        if (args[0] if args else kwargs.get("trial")) is not None:
            _refuse_second_search(settings)
            return inherited(trainer, resume_from_checkpoint, *args, **kwargs)
        first.begins()
        if not first.is_current:
            # The script may pass the resumed checkpoint to each of its trainings, but it belongs to the first.
            is_first_ones = settings.resume_from is not None and resume_from_checkpoint == str(settings.resume_from)
            asked = None if is_first_ones else resume_from_checkpoint or None
            result = inherited(trainer, asked, *args, **kwargs)
        else:
            with _with_first_step_count(trainer.args, settings):
                result = inherited(trainer, huggingface.resume_from(settings, resume_from_checkpoint), *args, **kwargs)
            first.ended()
        length.is_over = True
        return result

    return train


def _hp_search_setup(settings: Settings) -> Inherited:
    """Keep a search for hyperparameters, whose default space has batch sizes, from changing what the plan sets."""
    plans = _overrides(settings).keys()

    def rest(chosen: Mapping[str, Any]) -> dict[str, Any]:
        taken = sorted(plans & chosen.keys())
        if taken:
            script_warnings.warn(
                f"the search for hyperparameters chooses {' and '.join(taken)}, but its trials run with the plan's: "
                "leave them out of hp_space",
                once="search for a plan",
            )
        return {name: value for name, value in chosen.items() if name not in plans}

    def setup(inherited: Inherited, trainer: Any, trial: Any) -> None:
        if isinstance(trial, Mapping):  # of Ray or W&B, which have chosen already
            inherited(trainer, rest(trial))
            trainer._trial = trial  # the one that a report contains
            return
        space = getattr(trainer, "hp_space", None)
        if trial is None or space is None:
            inherited(trainer, trial)
            return
        trainer.hp_space = lambda trial: rest(space(trial))
        try:
            inherited(trainer, trial)
        finally:
            trainer.hp_space = space

    return setup


def _refuse_second_search(settings: Settings) -> None:
    """Raise BadInputError if a relaunched script searches again before the training that has begun."""
    if settings.resume_from is not None:
        raise BadInputError(
            "the script begins its search for hyperparameters again, and would resume from its checkpoint with others: "
            "search in a job of its own, and train in one with the best of them"
        )


@contextmanager
def _with_first_step_count(args: Any, settings: Settings) -> Iterator[None]:
    """Give a resumed training the number of steps that its first attempt planned."""
    asked, max_steps = args.max_steps, first_max_steps(settings.resume_from)
    if max_steps is not None and asked <= 0:
        args.max_steps = max_steps
    try:
        yield
    finally:
        args.max_steps = asked


def _no_batches_behind_the_end(inherited: Inherited, trainer: Any, *args: Any, **kwargs: Any) -> Any:
    """Give a training that was resumed behind its last step nothing to train on.

    The Trainer asks whether it has made all steps only after a step. Where the last one was in the middle of an epoch,
    it would make one more.
    """
    if trainer.state.global_step < trainer.state.max_steps:
        return inherited(trainer, *args, **kwargs)
    trainer.control.should_training_stop = True
    return [], None


def _length_callback(settings: Settings, trainer: Any, length: LibraryLength) -> Any:
    from transformers import TrainerCallback

    class TellLength(TrainerCallback):
        """Reports the steps of a training once the Trainer has computed them."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            loader, plan = trainer.callback_handler.train_dataloader, settings.plan
            # Some trainers, such as those that generate, take more samples at a time than they train on.
            samples = samples_of_pass(loader) if batch_size_of(loader) == plan.micro_batch else None
            steps = 0 if samples is None else math.ceil(len(loader) / plan.accumulation)
            epoch = Epoch(steps, samples) if samples and steps else None
            per_step, made = plan.micro_batch * plan.accumulation, partial(getattr, state, "global_step")
            length.begins(Training(state.max_steps, state.global_step, made, per_step, epoch))
            if state.global_step >= state.max_steps and state.is_world_process_zero:
                print(
                    f"memtune: the training was already complete, with step {state.global_step} of {state.max_steps}, "
                    "and trains nothing more; the Trainer may say that it finds no sample",
                    file=sys.stderr,
                    flush=True,
                )

    return TellLength()


def _probe_callback(probe: Probe, trainer: Any) -> Any:
    from transformers import TrainerCallback

    class EvaluateSaveAndStop(TrainerCallback):
        """Ends the training after the probe's last step, with one evaluation batch and one save."""

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
            if state.global_step >= state.max_steps:
                probe.training_ends()
            if probe.has_enough:
                control.should_evaluate = trainer.eval_dataset is not None
                control.should_save = True
                control.should_training_stop = True
            return control

    return EvaluateSaveAndStop()


def _one_evaluation_batch(inherited: Inherited, trainer: Any, eval_dataset: Any = None) -> Any:
    dataset = trainer.eval_dataset if eval_dataset is None else eval_dataset
    if isinstance(dataset, str):
        dataset = trainer.eval_dataset[dataset]
    if not hasattr(dataset, "__len__") or isinstance(dataset, dict):
        return inherited(trainer, eval_dataset)
    rows = range(min(len(dataset), trainer.args.eval_batch_size * trainer.args.world_size))
    if hasattr(dataset, "select"):
        return inherited(trainer, dataset.select(rows))
    from torch.utils.data import Subset

    return inherited(trainer, Subset(dataset, rows))
