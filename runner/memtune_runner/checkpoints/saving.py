"""Completes checkpoints that a script or a library has written by itself."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from memtune.plans.resume import Format
from memtune.wire import environment
from memtune_runner.checkpoints import manifest as manifests
from memtune_runner.checkpoints import save_barrier
from memtune_runner.checkpoints.complete_checkpoints import discard
from memtune_runner.checkpoints.manifest import Manifest, ManifestError
from memtune_runner.checkpoints.store import Ranks, Store
from memtune_runner.rank import progress, script_warnings
from memtune_runner.rank.bad_input import BadInputError
from memtune_runner.rank.progress import Progress, Trained
from memtune_runner.rank.settings import Settings, read_settings

_ON_EVERY_RANK = "call it on every rank, outside of any condition on the rank, once that rank has written its part"


def checkpoint_saved(directory: str | Path, *, samples: int) -> None:
    """Declare your own checkpoint in ``directory`` complete, so that a relaunch resumes from it.

    Call it on every rank after that rank has written its part. ``samples`` is the number that all ranks together have
    consumed since the start of the training. ``directory`` must lie below the job's ``checkpoint.path`` and be new each
    time: a checkpoint that is overwritten is lost if the run is killed meanwhile. The relaunch finds it in
    ``MEMTUNE_RESUME_FROM``. Without MemTune this does nothing.
    """
    if not os.environ.get(environment.PLAN):
        return
    settings, saved = read_settings(os.environ), Path(directory)
    if _is_kept(settings, saved):
        _check_samples(settings, samples)
        save_barrier.wait_for_all_ranks(f"checkpoint_saved({saved})", _ON_EVERY_RANK)
        _complete(settings, saved, Trained(settings.resumed_step + progress.now().steps, samples), Format.SCRIPT)


def save(settings: Settings, write: Callable[[Path], None], trained: Trained, checkpoint_format: Format) -> Path:
    """Let all ranks write a new checkpoint into the job's store, complete it, and delete the oldest."""
    return _store(settings, current_ranks()).save(write, _manifest(settings, trained, checkpoint_format))


def complete(settings: Settings, directory: Path, trained: Trained, checkpoint_format: Format) -> None:
    """Complete what all ranks have written; a probe's checkpoints stay incomplete."""
    if _is_kept(settings, directory):
        _complete(settings, directory, trained, checkpoint_format)


def begin(directory: Path) -> None:
    """Prepare a save by all ranks: an existing checkpoint there is complete no more."""
    ranks = current_ranks()
    if ranks.rank == 0 and directory.exists():
        discard(directory)
    ranks.barrier()


def is_complete(directory: Path) -> bool:
    """Whether the directory has a manifest and every file has the size that it lists."""
    try:
        manifests.read_complete(directory)
    except ManifestError:
        return False
    return True


def current_ranks() -> Ranks:
    """Return the ranks of torch.distributed; a single process if it is not initialized."""
    from torch import distributed

    if not (distributed.is_available() and distributed.is_initialized()):
        return Ranks()
    return Ranks(distributed.get_rank(), int(os.environ.get("LOCAL_RANK", "0")), distributed.barrier)


def _is_kept(settings: Settings, directory: Path) -> bool:
    """Whether a relaunch can find a save there; a probe's saves must not be found."""
    if settings.is_probe or settings.checkpoint_path is None:
        return False
    refuse_root(settings, directory)
    if directory.resolve().is_relative_to(settings.checkpoint_path.resolve()):
        return True
    script_warnings.warn(
        "the script saves outside of checkpoint.path, where no relaunch finds it: let it save below "
        f"$MEMTUNE_CHECKPOINT_PATH, not to {directory}",
        once="outside",
    )
    return False


def refuse_root(settings: Settings, directory: Path) -> None:
    """Raise BadInputError for a save into the job's checkpoint.path itself: the next one would overwrite it."""
    root = settings.checkpoint_path
    if root is not None and directory.resolve() == root.resolve():
        raise BadInputError(
            f"the checkpoint {directory} is the job's checkpoint.path itself, which each save would overwrite: let the "
            f"script save into a new directory below it each time, such as {root / 'step-100'}"
        )


def _check_samples(settings: Settings, samples: int) -> None:
    """Raise BadInputError if a resumed script counts its samples from 0 again; warn if it counts too few.

    Only the first call of a resumed run is checked, as later counts may exceed the samples resumed from. A loop may
    make several steps on the same samples, so fewer than were trained, even as few as the steps, may be right.
    """
    resumed, now = settings.resume_samples, progress.now()
    is_first = resumed and Store.last_completed is None
    if is_first and (samples < resumed or samples == resumed <= now.samples):
        raise BadInputError(
            f"checkpoint_saved(samples={samples}): the run was resumed after {resumed} samples and has trained about "
            f"{now.samples} since, so the script counts them from 0 again: start its count of samples, or of steps, "
            "from $MEMTUNE_RESUME_SAMPLES, or from what it saved in the checkpoint"
        )
    if resumed and not is_first:
        return
    trained = resumed + now.samples
    if samples < trained:
        _warn_of_few(samples, trained, samples - resumed, now)


def _warn_of_few(samples: int, trained: int, counted: int, now: Progress) -> None:
    is_like_steps = counted <= now.steps and 2 * counted < now.samples
    what = f"those of all ranks and micro-batches{f', not the {now.steps} steps' if is_like_steps else ''}"
    script_warnings.warn(
        f"checkpoint_saved(samples={samples}) came after about {trained} samples were trained: pass {what}, or a "
        "resume trains some again, unless the loop trains several times on each",
        once="samples",
    )


def _complete(settings: Settings, directory: Path, trained: Trained, checkpoint_format: Format) -> None:
    _store(settings, current_ranks()).complete(directory, _manifest(settings, trained, checkpoint_format))


def _store(settings: Settings, ranks: Ranks) -> Store:
    if settings.checkpoint_path is None:
        raise ValueError("the job has no checkpoint.path to save to; set it, or give save a directory")
    return Store(settings.checkpoint_path, settings.attempt or 0, ranks, settings.job_uid)


def _manifest(settings: Settings, trained: Trained, checkpoint_format: Format) -> Manifest:
    return Manifest(trained.steps, trained.samples, settings.plan, settings.world, checkpoint_format)
