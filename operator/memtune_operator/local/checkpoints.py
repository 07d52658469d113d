"""Where a job keeps its checkpoints on one machine: there is no pod, and nobody mounts a volume."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path, PurePosixPath

from memtune.api import Job
from memtune_operator.pods.template import read_template
from memtune_operator.pods.wrapping import TemplateError


class CheckpointPathError(OSError):
    """No run could save there. The message names the field and says what to do."""


def checkpoint_path(job: Job, directory: Path) -> str:
    """Where the job's checkpoints are; empty if it has none.

    What is mounted in a pod may be anything here, and the default is a name in the root of the machine that every job
    has in common: both are in the state directory. A path that is neither is one the user has chosen. What an emulated
    GPU saves was never computed: it has a place of its own, so that no real training goes on from it.
    """
    checkpoint = job.spec.checkpoint
    if checkpoint is None:
        return ""
    if job.spec.resources.is_emulated:
        return emulated_checkpoints(directory)
    is_chosen = "path" in checkpoint.model_fields_set and not checkpoint.volume and not _is_mounted(job)
    return checkpoint.path if is_chosen else str(directory / "checkpoints")


def emulated_checkpoints(directory: Path) -> str:
    """Where emulated runs save."""
    return str(directory / "emulated-checkpoints")


def _is_mounted(job: Job) -> bool:
    """Whether the template itself mounts what the checkpoints are on."""
    assert job.spec.checkpoint is not None  # only then it is asked
    path = PurePosixPath(job.spec.checkpoint.path)
    try:
        containers = read_template(job, "")["spec"]["containers"]
    except TemplateError:
        return False  # whoever checks the job says what is wrong with it, and nothing is started
    mounts = [each["mountPath"] for container in containers for each in container.get("volumeMounts") or []]
    return any(path.is_relative_to(each) for each in mounts)


def make(path: str) -> None:
    """Make the directory, and see that it can be written: root is refused by some file systems, too."""
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise CheckpointPathError(
            f"spec.checkpoint.path: {path} cannot be written: {error.strerror}; "
            "give another directory, or leave path out: the checkpoints are with the state then"
        ) from None


def moved(word: str, path: str, here: str) -> str:
    """A word that is a path or goes on from it, also behind `--option=`, with that path being another."""
    return re.sub(rf"(?<![^=]){re.escape(path)}(?=/|$)", lambda _: here, word)
