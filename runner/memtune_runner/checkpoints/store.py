"""The checkpoints of a job on its shared volume: fenced by job and attempt, complete or not there at all.

Nothing here needs torch: the launcher looks for what to resume before any worker starts.
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

# The newest may have been saved by a plan that is on its way to fail; the one before is what remains then.
KEPT = 2
# Trainer writes output_dir/checkpoint-N, and output_dir may be a directory of its own on the volume.
_DEEPEST = 2
_FENCE = re.compile(r"memtune-fence-(\d+)")
# A converted one has a word more in its name.
_OWN = re.compile(r"memtune-step-\d+-attempt-(\d+)(-\w+)?")


class FencedError(BadInputError):
    """A newer attempt, or a newer job, has begun: this one must not write any more."""


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint: its directory, and what its manifest says."""

    directory: Path
    manifest: Manifest


@dataclass(frozen=True)
class Ranks:
    """Who takes part in a save. ``barrier`` returns when all ranks have come to it."""

    rank: int = 0
    local_rank: int = 0
    barrier: Callable[[], None] = lambda: None


class _Fence(NamedTuple):
    """The file that says which attempt of which job has begun."""

    path: Path
    attempt: int
    job_uid: str


class Store:
    """One directory of checkpoints, as one attempt of a job sees it. ``last_completed`` is of this whole process.

    A job that was made anew goes on from what the one before has saved, and counts its attempts from 1 again.
    """

    last_completed: Checkpoint | None = None

    def __init__(self, root: Path, attempt: int, ranks: Ranks | None = None, job_uid: str = "") -> None:
        self._root = root
        self._attempt = attempt
        self._job_uid = job_uid
        self._ranks = ranks or Ranks()

    def raise_fence(self) -> None:
        """Begin the attempt: from here on no earlier one, and none of an earlier job, completes a save."""
        self._root.mkdir(parents=True, exist_ok=True)
        for fence in _fences(self._root):
            if fence.job_uid != self._job_uid:
                fence.path.unlink(missing_ok=True)
        (self._root / f"memtune-fence-{self._attempt}").write_text(self._job_uid)
        manifests.sync_directory(self._root)
        self.check_fence()

    def check_fence(self) -> None:
        """Raise FencedError if a newer attempt has begun. Fences of another job were raised after this attempt's."""
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
        """Let all ranks write into one new directory, then complete it and drop the oldest."""
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
        """Make what all ranks have written a complete checkpoint. Every rank calls this after its last write."""
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
        """Delete all but the newest of the checkpoints that were saved through ``save``, and what is left of others."""
        own = {path: match for path in self._root.iterdir() if (match := _OWN.fullmatch(path.name))}
        complete = [each.directory for each in complete_checkpoints(self._root)]
        kept = [directory for directory in complete if directory in own and not own[directory][2]][:KEPT]
        for directory, match in own.items():
            # What a newer attempt is writing is not there to be judged.
            if directory not in kept and int(match[1]) <= self._attempt:
                discard(directory)


def newest(root: Path) -> Checkpoint | None:
    """The complete checkpoint with the most samples behind it; of equals, the one of the latest attempt."""
    return next(iter(complete_checkpoints(root)), None)


def complete_checkpoints(root: Path) -> list[Checkpoint]:
    """All complete checkpoints below ``root``, the newest first. Others are passed over with a sentence in the log."""
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
    """Delete a checkpoint so that it is never seen with a part of its files: its manifest goes first."""
    (directory / manifests.FILE_NAME).unlink(missing_ok=True)
    shutil.rmtree(directory, ignore_errors=True)


def _age(checkpoint: Checkpoint) -> tuple[int, int, str]:
    manifest = checkpoint.manifest
    return manifest.samples, manifest.attempt, checkpoint.directory.name


def _fences(root: Path) -> Iterator[_Fence]:
    for path in sorted(root.iterdir()):
        match = _FENCE.fullmatch(path.name)
        if match:
            # One that another job takes down at this moment is none any more.
            with suppress(FileNotFoundError):
                yield _Fence(path, int(match[1]), path.read_text())


def directories(root: Path, depth: int = _DEEPEST) -> Iterator[Path]:
    """Those that may be checkpoints; none that is hidden."""
    with suppress(OSError):
        for path in sorted(root.iterdir()):
            if path.is_dir() and not path.name.startswith("."):
                yield path
                if depth > 1 and not (path / manifests.FILE_NAME).exists():
                    yield from directories(path, depth - 1)
