"""Writes a job's checkpoints on its volume: fenced by job and attempt, completed by a manifest. Needs no torch."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from memtune_runner.checkpoints import manifest as manifests
from memtune_runner.checkpoints.complete_checkpoints import Checkpoint, complete_checkpoints, discard
from memtune_runner.checkpoints.manifest import Manifest
from memtune_runner.rank.bad_input import BadInputError

# The newest may come from a plan that is about to fail; the one before it then remains.
KEPT = 2
_FENCE = re.compile(r"memtune-fence-(\d+)")
# A converted checkpoint has one more word in its name.
_OWN = re.compile(r"memtune-step-\d+-attempt-(\d+)(-\w+)?")


class FencedError(BadInputError):
    """A newer attempt or a newer job has begun, so this one must not write any more."""


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


def _fences(root: Path) -> Iterator[_Fence]:
    for path in sorted(root.iterdir()):
        match = _FENCE.fullmatch(path.name)
        if match:
            # Another job may be deleting it at this moment.
            with suppress(FileNotFoundError):
                yield _Fence(path, int(match[1]), path.read_text())
