"""The checkpoints of a job on its shared volume: fenced by job and attempt, written atomically.

Needs no torch: the launcher looks for a checkpoint to resume from before any worker starts.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from memtune_runner.checkpoints import manifest as manifests
from memtune_runner.checkpoints.manifest import Manifest, ManifestError
from memtune_runner.rank.bad_input import BadInputError

# The newest may come from a plan that is about to fail; the one before it then remains.
KEPT = 2
# Trainer writes output_dir/checkpoint-N, and output_dir may be a directory below the volume.
_DEEPEST = 2
_FENCE = re.compile(r"memtune-fence-(\d+)")
# A converted checkpoint has one more word in its name.
_OWN = re.compile(r"memtune-step-\d+-attempt-(\d+)(-\w+)?")


class FencedError(BadInputError):
    """A newer attempt or a newer job has begun, so this one must not write any more."""


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint: its directory and its manifest."""

    directory: Path
    manifest: Manifest


@dataclass(frozen=True)
class Ranks:
    """The ranks of a save. ``barrier`` returns when all of them have reached it."""

    rank: int = 0
    local_rank: int = 0
    barrier: Callable[[], None] = lambda: None


class _Fence(NamedTuple):
    """The file that says which attempt of which job has begun."""

    path: Path
    attempt: int
    job_uid: str


class Store:
    """A directory of checkpoints, as one attempt of a job sees it. ``last_completed`` holds for the whole process.

    A re-created job resumes from its predecessor's checkpoints, and counts its attempts from 1 again.
    """

    last_completed: Checkpoint | None = None

    def __init__(self, root: Path, attempt: int, ranks: Ranks | None = None, job_uid: str = "") -> None:
        self._root = root
        self._attempt = attempt
        self._job_uid = job_uid
        self._ranks = ranks or Ranks()

    def write_fence(self) -> None:
        """Begin the attempt: from now on no earlier attempt or job can complete a save."""
        self._root.mkdir(parents=True, exist_ok=True)
        for fence in _fences(self._root):
            if fence.job_uid != self._job_uid:
                fence.path.unlink(missing_ok=True)
        (self._root / f"memtune-fence-{self._attempt}").write_text(self._job_uid)
        manifests.sync_directory(self._root)
        self.check_fence()

    def check_fence(self) -> None:
        """Raise FencedError if a newer attempt has begun. Another job's fence was raised after this attempt's."""
        fences = list(_fences(self._root))
        newer = [fence.attempt for fence in fences if fence.attempt > self._attempt]
        is_taken_over = any(fence.job_uid != self._job_uid for fence in fences)
        if newer or is_taken_over:
            other = "another job" if is_taken_over else f"attempt {max(newer)}"
            raise FencedError(
                f"attempt {self._attempt} must not save: {other} has begun on {self._root}; "
                "this run is left over and should be deleted"
            )

    def save(self, write: Callable[[Path], None], manifest: Manifest) -> Path:
        """Let all ranks write into one new directory, then complete it and delete the oldest."""
        directory = self._root / f"memtune-step-{manifest.step:08}-attempt-{self._attempt}"
        if self._ranks.rank == 0:
            self._root.mkdir(parents=True, exist_ok=True)
            self.check_fence()
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir()
        self._ranks.barrier()
        write(directory)
        self.complete(directory, manifest)
        if self._ranks.rank == 0:
            self._prune()
        return directory

    def complete(self, directory: Path, manifest: Manifest) -> None:
        """Complete what all ranks have written. Every rank calls this after its last write."""
        manifest = replace(manifest, attempt=self._attempt, job_uid=self._job_uid)
        if self._ranks.local_rank == 0:
            manifests.sync_files(directory)
        self._ranks.barrier()
        if self._ranks.rank == 0:
            self.check_fence()
            files = manifests.sizes(directory)
            manifests.write(directory, replace(manifest, files=files))
        self._ranks.barrier()
        Store.last_completed = Checkpoint(directory, manifest)

    def _prune(self) -> None:
        """Delete all but the newest checkpoints saved through ``save``, and remains of incomplete ones."""
        own = {path: match for path in self._root.iterdir() if (match := _OWN.fullmatch(path.name))}
        complete = [each.directory for each in complete_checkpoints(self._root)]
        kept = [directory for directory in complete if directory in own and not own[directory][2]][:KEPT]
        for directory, match in own.items():
            # Leave alone what a newer attempt is writing.
            if directory not in kept and int(match[1]) <= self._attempt:
                discard(directory)


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
            found.append(Checkpoint(directory, manifests.read(directory)))
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


def _fences(root: Path) -> Iterator[_Fence]:
    for path in sorted(root.iterdir()):
        match = _FENCE.fullmatch(path.name)
        if match:
            # Another job may be deleting it at this moment.
            with suppress(FileNotFoundError):
                yield _Fence(path, int(match[1]), path.read_text())


def directories(root: Path, depth: int = _DEEPEST) -> Iterator[Path]:
    """Yield directories that may be checkpoints, except hidden ones."""
    with suppress(OSError):
        for path in sorted(root.iterdir()):
            if path.is_dir() and not path.name.startswith("."):
                yield path
                if depth > 1 and not (path / manifests.FILE_NAME).exists():
                    yield from directories(path, depth - 1)
