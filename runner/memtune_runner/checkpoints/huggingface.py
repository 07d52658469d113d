"""Makes checkpoints of transformers' Trainer and of accelerate atomic.

A manifest completes a save, and only then is the previous checkpoint deleted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from memtune.plans.resume import Format
from memtune.wire.report import Phase
from memtune_runner.checkpoints.complete_checkpoints import discard
from memtune_runner.checkpoints.saving import begin, complete, current_ranks, is_complete, refuse_root
from memtune_runner.checkpoints.store import Store
from memtune_runner.rank import phases
from memtune_runner.rank.bad_input import BadInputError
from memtune_runner.rank.progress import Trained
from memtune_runner.rank.settings import Settings

Inherited = Callable[..., Any]


def trainer_save(
    settings: Settings,
    rotate: Callable[..., None] | None,
    keeps: Callable[[], bool],
    trained: Callable[[int], Trained],
) -> Inherited:
    """Return the wrapper of ``Trainer._save_checkpoint``.

    ``rotate`` deletes old checkpoints beyond a limit. ``keeps`` returns whether the next attempt may resume from a
    save, ``trained`` the progress that the Trainer's steps mean.
    """

    def save(inherited: Inherited, trainer: Any, model: Any, trial: Any = None, *args: Any, **kwargs: Any) -> None:
        if trial is not None:  # of a search for hyperparameters, which saves elsewhere and is never resumed
            with phases.during(Phase.SAVE):
                inherited(trainer, model, trial, *args, **kwargs)
            return
        is_kept, asked = keeps(), trainer.args.output_dir
        output_dir = Path(asked) if is_kept else _apart(Path(asked))
        directory = output_dir / f"checkpoint-{trainer.state.global_step}"
        begin(directory)
        # The Trainer would delete the previous checkpoint before this one is complete.
        limit, trainer.args.save_total_limit = trainer.args.save_total_limit, None
        trainer.args.output_dir = str(output_dir)
        try:
            with phases.during(Phase.SAVE):
                inherited(trainer, model, trial, *args, **kwargs)
        finally:
            trainer.args.save_total_limit, trainer.args.output_dir = limit, asked
        if is_kept:
            complete(settings, directory, trained(trainer.state.global_step), Format.HF_TRAINER)
        if rotate is not None and limit and trainer.args.should_save:
            best = trainer.state.best_model_checkpoint
            rotate(str(output_dir), save_total_limit=limit, best_model_checkpoint=best, use_mtime=True)

    return save


def probe_save(inherited: Inherited, *args: Any, **kwargs: Any) -> Any:
    """Wrap a save of a probe, which is measured and never resumed from."""
    with phases.during(Phase.SAVE):
        return inherited(*args, **kwargs)


def _apart(output_dir: Path) -> Path:
    """Return where saves go that are never resumed from: outside the path and the limit of those that are."""
    is_shared = any(is_complete(path) for path in output_dir.glob("checkpoint-*"))
    return output_dir / "not-resumed" if is_shared else output_dir


def state_of_plan(settings: Settings) -> Inherited:
    """Return the wrapper of ``TrainerState.load_from_json``, which keeps the old micro-batch from a downgraded plan.

    Depending on the release, transformers restores the stored value over the new argument always or in some cases
    (huggingface/transformers, pull requests 27568 and 43770).
    """

    def load_from_json(inherited: Inherited, *args: Any, **kwargs: Any) -> Any:
        state = inherited(*args, **kwargs)
        state.train_batch_size = settings.plan.micro_batch
        return state

    return load_from_json


def resume_from(settings: Settings, asked: Any) -> Any:
    """Return the checkpoint that ``Trainer.train`` resumes from: never an incomplete one, even if the script asks for
    it.
    """
    if settings.resume_from is not None:
        return str(settings.resume_from)
    if not asked:
        return None  # $(MEMTUNE_RESUME_FROM) is empty for a fresh start, but some releases only test for None
    root = settings.checkpoint_path
    if root is None or settings.is_probe:
        return asked
    is_ours = asked is True or Path(asked).resolve().is_relative_to(root.resolve())
    if is_ours and (asked is True or not is_complete(Path(asked))):
        print(f"memtune: no complete checkpoint in {root}; the training starts from step 0", file=sys.stderr)
        return None
    return asked


def accelerate_save(settings: Settings, trained: Callable[[], Trained], keeps: Callable[[Any], bool]) -> Inherited:
    """Return the wrapper of ``Accelerator.save_state``.

    ``trained`` returns the progress of the training, ``keeps`` whether the next attempt may resume from the saves of an
    Accelerator.
    """

    def save_state(inherited: Inherited, accelerator: Any, output_dir: Any = None, *args: Any, **kwargs: Any) -> Any:
        if not keeps(accelerator):
            with phases.during(Phase.SAVE):
                return inherited(accelerator, output_dir, *args, **kwargs)
        project = accelerator.project_configuration
        target = _next_target(accelerator) if project.automatic_checkpoint_naming else Path(output_dir)
        refuse_root(settings, target)
        # The existing checkpoint stays the newest until its successor is complete.
        directory = target.with_name(f"{target.name}-next") if is_complete(target) else target
        begin(directory)
        # accelerate would delete old checkpoints before writing the new one.
        limit, project.total_limit = project.total_limit, None
        try:
            with phases.during(Phase.SAVE):
                given = output_dir if project.automatic_checkpoint_naming else str(directory)
                result = inherited(accelerator, given, *args, **kwargs)
        finally:
            project.total_limit = limit
        complete(settings, directory, trained(), Format.ACCELERATE)
        if project.automatic_checkpoint_naming and limit and current_ranks().rank == 0:
            _keep_newest(target.parent, limit)
        return _put_in_place(directory, target) if directory != target else result

    return save_state


def accelerate_load(settings: Settings, resumes: Callable[[Any], bool], has_trained: Callable[[], bool]) -> Inherited:
    """Return the wrapper of ``Accelerator.load_state``: it loads the resolved checkpoint instead of the script's own.

    ``resumes`` returns whether the Accelerator continues the training of that checkpoint, ``has_trained`` whether this
    process has made a step: a script that loads again then takes another state, such as its best.
    """

    def load_state(inherited: Inherited, accelerator: Any, input_dir: Any = None, *args: Any, **kwargs: Any) -> Any:
        resumed = settings.resume_from
        if not resumes(accelerator):
            if resumed is not None and input_dir and Path(input_dir).resolve() == resumed.resolve():
                raise BadInputError(
                    f"the script loads {input_dir} in a later training, too, and it is a checkpoint of its first: only "
                    "the first one goes on, so let the script begin the others without a checkpoint"
                )
            return inherited(accelerator, input_dir, *args, **kwargs)
        resolved = input_dir if resumed is None or has_trained() else str(resumed)
        result = inherited(accelerator, resolved, *args, **kwargs)
        # The saved plan's count of micro-batches: under another accumulation the first step would be short.
        accelerator.step = 0
        return result

    return load_state


def _next_target(accelerator: Any) -> Path:
    """Return accelerate's next directory: it counts from 0 in every attempt and takes the lowest as the oldest."""
    folder, project = Path(accelerator.project_dir) / "checkpoints", accelerator.project_configuration
    last = max((_number(path) for path in _numbered(folder) if is_complete(path)), default=-1)
    project.iteration = max(project.iteration, last + 1)
    return folder / f"checkpoint_{project.iteration}"


def _put_in_place(successor: Path, target: Path) -> str:
    """Replace a checkpoint by its successor, which between the two renames is found under its own name."""
    ranks = current_ranks()
    if ranks.rank == 0:
        discard(target)
        successor.rename(target)
    ranks.barrier()
    if Store.last_completed is not None:
        Store.last_completed = replace(Store.last_completed, directory=target)
    return str(target)


def _keep_newest(folder: Path, limit: int) -> None:
    for path in sorted(_numbered(folder), key=_number)[:-limit]:
        discard(path)


def _numbered(folder: Path) -> list[Path]:
    return [path for path in folder.glob("checkpoint_*") if path.name.rpartition("_")[2].isdecimal()]


def _number(path: Path) -> int:
    return int(path.name.rpartition("_")[2])
