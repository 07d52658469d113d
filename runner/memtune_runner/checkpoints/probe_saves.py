"""The checkpoints of probes: in their own directory below the job's ``checkpoint.path``, which no run resumes from."""

from __future__ import annotations

import re
import shutil
from contextlib import suppress
from pathlib import Path

from memtune.wire.names import probe_saves
from memtune_runner.rank.settings import Settings


def job_path(settings: Settings) -> Path | None:
    """The job's ``checkpoint.path``, of which a probe is given a directory."""
    path = settings.checkpoint_path
    return path.parent if path is not None and _is_own(path, settings) else path


def make_anew(settings: Settings) -> None:
    """Make the probe's directory. A run of the same name that was killed may have left some there."""
    delete(settings)
    if settings.checkpoint_path is not None:
        settings.checkpoint_path.mkdir(parents=True, exist_ok=True)


def delete(settings: Settings) -> None:
    """Delete what the probe has saved, in its own directory alone."""
    path = settings.checkpoint_path
    if path is not None and _is_own(path, settings):
        shutil.rmtree(path, ignore_errors=True)


def delete_left(root: Path, settings: Settings) -> None:
    """Delete what probes of this job have saved that were killed before they could delete it."""
    job, kind, _ = (settings.run or "").rpartition("-train-")
    if not kind:
        return
    own = re.compile(rf"\.memtune-{re.escape(job)}-(probe|emulate)-\d+")
    with suppress(OSError):
        for path in root.iterdir():
            if own.fullmatch(path.name):
                shutil.rmtree(path, ignore_errors=True)


def _is_own(path: Path, settings: Settings) -> bool:
    return settings.is_probe and bool(settings.run) and path == Path(probe_saves(str(path.parent), settings.run))
