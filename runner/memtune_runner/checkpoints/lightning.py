"""Checkpoints of Lightning's Trainer and of Fabric, a second time where the next attempt looks for them.

Both save files or directories wherever the script wants them, overwrite them and delete them. What is resumed from is
saved beside, in the job's own store.
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
from memtune_runner.rank.ranks import own_directory
from memtune_runner.rank.settings import Settings

Inherited = Callable[..., Any]
# Where no strategy shards, a checkpoint is one file.
_FILE = "checkpoint.ckpt"
_NEWEST = "last"


def trainer_save(settings: Settings, keeps: Callable[[], bool]) -> Inherited:
    """The wrapper of ``Trainer.save_checkpoint``. ``keeps`` tells whether the next attempt may resume from a save."""

    def save_checkpoint(
        inherited: Inherited, trainer: Any, filepath: Any, weights_only: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        with phases.during(Phase.SAVE):
            inherited(trainer, filepath, weights_only, *args, **kwargs)
        # After an exception the other ranks may be elsewhere, and the weights within a step.
        if not weights_only and trainer.state.fn.value == "fit" and not trainer.interrupted and keeps():
            keep(settings, lambda path: inherited(trainer, path), _samples(trainer, settings))

    return save_checkpoint


def _samples(trainer: Any, settings: Settings) -> int:
    """The samples behind a Trainer's weights, by its own count of steps.

    The watch also counts those of a search for a learning rate, which are undone. A loop that steps by itself counts
    each of its optimizers.
    """
    steps: int = trainer.global_step // max(len(trainer.optimizers), 1)
    return steps * settings.global_batch


def keep(settings: Settings, write: Callable[[Path], None], samples: int) -> None:
    """Save what the next attempt goes on from, once for each step."""
    newest = Store.last_completed
    if settings.checkpoint_path is None or settings.is_probe or samples <= settings.resume_samples:
        return
    if newest is not None and newest.manifest.samples == samples:
        return
    with phases.during(Phase.SAVE):
        saving.save(settings, lambda directory: write(_in(directory, settings)), samples, Format.LIGHTNING)


def save_aside(inherited: Inherited, owner: Any, path: Any, *args: Any, **kwargs: Any) -> None:
    """The wrapper of both saves in a probe: nobody may resume from what is only saved to be measured."""
    directory = (own_directory(os.environ) or Path(tempfile.gettempdir())) / "probe-checkpoint"
    directory.mkdir(parents=True, exist_ok=True)
    with phases.during(Phase.SAVE):
        inherited(owner, directory / Path(path).name, *args, **kwargs)


def resume_from(settings: Settings, asked: Any) -> Any:
    """What ``Trainer.fit`` resumes from, whatever the script asks for: never what was not completed."""
    if settings.resume_from is not None:
        return str(_in(settings.resume_from, settings))
    found = _resume_from(settings, asked == _NEWEST or asked)
    return _NEWEST if found is True else found


def _in(directory: Path, settings: Settings) -> Path:
    return directory / _FILE if settings.plan.sharding.backend == "ddp" else directory
