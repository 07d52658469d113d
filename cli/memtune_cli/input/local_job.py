"""Reads a `memtune run` job from its state directory."""

from __future__ import annotations

import fcntl
from dataclasses import replace
from pathlib import Path
from typing import Any

from memtune_cli.errors import InputError
from memtune_cli.input.job_view import JobView, job_view_of
from memtune_operator.local.backend import StateError, job_in
from memtune_operator.local.checkpoints import checkpoint_path


def job_at(directory: Path) -> dict[str, Any]:
    """The job in a state directory; empty if there is none."""
    try:
        return job_in(directory)
    except StateError as error:
        raise InputError(str(error)) from None


def job_view_at(directory: Path) -> JobView:
    """The view of the job in a state directory."""
    manifest = job_at(directory)
    if not manifest:
        raise InputError(
            f"--state: {directory} holds no job of memtune run; give what it had as --state, or else .memtune/NAME"
        )
    return replace(with_local_path(manifest, directory), is_left=not _is_at_work(directory))


def with_local_path(manifest: dict[str, Any], directory: Path) -> JobView:
    """The view of a local job, with its actual checkpoint path."""
    view = job_view_of(manifest)
    job, state = view.job, str(directory)
    if job is None or job.spec.checkpoint is None:
        return replace(view, state=state)
    checkpoint = job.spec.checkpoint.model_copy(update={"path": checkpoint_path(job, directory)})
    spec = job.spec.model_copy(update={"checkpoint": checkpoint})
    return replace(view, job=job.model_copy(update={"spec": spec}), state=state)


def _is_at_work(directory: Path) -> bool:
    """Whether a `memtune run` is using the directory."""
    try:
        with (directory / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
