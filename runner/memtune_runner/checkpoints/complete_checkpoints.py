"""The complete checkpoints on a job's volume, the newest first; `manifest.read_complete` says whether one is complete.

`latest_checkpoint.resolve` picks the one to resume from. Needs no torch: the launcher does that before any worker
starts.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from memtune_runner.checkpoints import manifest as manifests
from memtune_runner.checkpoints.manifest import Manifest, ManifestError

# Trainer writes output_dir/checkpoint-N, and output_dir may be a directory below the volume.
_DEEPEST = 2


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint: its directory and its manifest."""

    directory: Path
    manifest: Manifest


def newest(root: Path) -> Checkpoint | None:
    """Return the complete checkpoint with the most samples; among equals, that of the latest attempt."""
    return next(iter(complete_checkpoints(root)), None)


def complete_checkpoints(root: Path) -> list[Checkpoint]:
    """Return all complete checkpoints below ``root``, newest first; log a line for each that is skipped."""
    found = []
    for directory in directories(root):
        if not (directory / manifests.FILE_NAME).exists():
            continue
        try:
            found.append(Checkpoint(directory, manifests.read_complete(directory)))
        except ManifestError as error:
            print(f"memtune: a checkpoint is passed over: {error}", file=sys.stderr)
    return sorted(found, key=_age, reverse=True)


def discard(directory: Path) -> None:
    """Delete a checkpoint, its manifest first, so that it never looks complete with files missing."""
    (directory / manifests.FILE_NAME).unlink(missing_ok=True)
    shutil.rmtree(directory, ignore_errors=True)


def _age(checkpoint: Checkpoint) -> tuple[int, int, str]:
    manifest = checkpoint.manifest
    return manifest.samples, manifest.attempt, checkpoint.directory.name


def directories(root: Path, depth: int = _DEEPEST) -> Iterator[Path]:
    """Yield directories that may be checkpoints, except hidden ones."""
    with suppress(OSError):
        for path in sorted(root.iterdir()):
            if path.is_dir() and not path.name.startswith("."):
                yield path
                if depth > 1 and not (path / manifests.FILE_NAME).exists():
                    yield from directories(path, depth - 1)
