"""Saves checkpoints of Lightning's Trainer and of Fabric a second time, in the job's store for the next attempt.

Both write files or directories wherever the script wants, overwrite them and delete them.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from memtune.plans.resume import Format
from memtune.wire.report import Phase
from memtune_runner.checkpoints import saving
from memtune_runner.checkpoints.huggingface import resume_from as _resume_from
from memtune_runner.checkpoints.store import Store
from memtune_runner.rank import phases
from memtune_runner.rank.progress import Trained
from memtune_runner.rank.ranks import own_directory
from memtune_runner.rank.settings import Settings

Inherited = Callable[..., Any]
# Without a sharding strategy, a checkpoint is one file.
_FILE = "checkpoint.ckpt"
_NEWEST = "last"


def trainer_save(settings: Settings, keeps: Callable[[], bool], trained: Callable[[int], Trained]) -> Inherited:
    """Return the wrapper of ``Trainer.save_checkpoint``.

    ``keeps`` returns whether an attempt may resume from a save, ``trained`` the progress that the Trainer's steps mean.
    """

    def save_checkpoint(
        inherited: Inherited, trainer: Any, filepath: Any, weights_only: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        with phases.during(Phase.SAVE):
            inherited(trainer, filepath, weights_only, *args, **kwargs)
        # After an exception other ranks may be elsewhere, and the weights may be in mid-step.
        if not weights_only and trainer.state.fn.value == "fit" and not trainer.interrupted and keeps():
            keep(settings, lambda path: inherited(trainer, path), trained(_steps(trainer)))

    return save_checkpoint


def _steps(trainer: Any) -> int:
    """Return the steps that a Trainer has made, by its own count.

    The watch also counts the steps of a learning-rate search, which are undone. A loop with manual optimization counts
    every optimizer.
    """
    return int(trainer.global_step) // max(len(trainer.optimizers), 1)


def keep(settings: Settings, write: Callable[[Path], None], trained: Trained) -> None:
    """Save a checkpoint for the next attempt, once per step."""
    newest = Store.last_completed
    if settings.checkpoint_path is None or settings.is_probe or trained.steps <= settings.resumed_step:
        return
    if newest is not None and newest.manifest.step == trained.steps:
        return
    with phases.during(Phase.SAVE):
        saving.save(settings, lambda directory: write(_in(directory, settings)), trained, Format.LIGHTNING)


def save_aside(inherited: Inherited, owner: Any, path: Any, *args: Any, **kwargs: Any) -> None:
    """The wrapper of both saves in a probe: a save that is only measured must not be resumed from."""
    directory = (own_directory(os.environ) or Path(tempfile.gettempdir())) / "probe-checkpoint"
    directory.mkdir(parents=True, exist_ok=True)
    with phases.during(Phase.SAVE):
        inherited(owner, directory / Path(path).name, *args, **kwargs)


def resume_from(settings: Settings, asked: Any) -> Any:
    """Return the checkpoint that ``Trainer.fit`` resumes from: never an incomplete one, though the script asks."""
    if settings.resume_from is not None:
        return str(_in(settings.resume_from, settings))
    found = _resume_from(settings, asked == _NEWEST or asked)
    return _NEWEST if found is True else found


def _in(directory: Path, settings: Settings) -> Path:
    return directory / _FILE if settings.plan.sharding.backend == "ddp" else directory
