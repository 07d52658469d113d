"""The checkpoint directory of a local job, which has no pod and no volumes."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path, PurePosixPath

from memtune.api import Job
from memtune_operator.pods.template import read_template
from memtune_operator.pods.wrapped_container import TemplateError


class CheckpointPathError(OSError):
    """The checkpoint path is not writable. The message names the field and says what to do."""


def checkpoint_path(job: Job, directory: Path) -> str:
    """The directory of the job's checkpoints; empty if it has none.

    A path that is a mount in the pod, and the default path, are replaced by a directory in the state directory; any
    other path is the user's choice and kept. Emulated runs save to a directory of their own, so that no real training
    resumes from values that were never computed.
    """
    checkpoint = job.spec.checkpoint
    if checkpoint is None:
        return ""
    if job.spec.resources.is_emulated:
        return emulated_checkpoints(directory)
    is_chosen = "path" in checkpoint.model_fields_set and not checkpoint.volume and not _is_mounted(job)
    return checkpoint.path if is_chosen else str(directory / "checkpoints")


def emulated_checkpoints(directory: Path) -> str:
    """The checkpoint directory of emulated runs."""
    return str(directory / "emulated-checkpoints")


def _is_mounted(job: Job) -> bool:
    """Whether the template mounts a volume at the checkpoint path."""
    assert job.spec.checkpoint is not None  # the caller checks it
    path = PurePosixPath(job.spec.checkpoint.path)
    try:
        containers = read_template(job, "")["spec"]["containers"]
    except TemplateError:
        return False  # the job's validation reports it, and nothing is started
    mounts = [each["mountPath"] for container in containers for each in container.get("volumeMounts") or []]
    return any(path.is_relative_to(each) for each in mounts)


def make(path: str) -> None:
    """Create the directory and check that it is writable, which some file systems deny even to root."""
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
    """Replace ``path`` by ``here`` at the start of a command word, also after `--option=`."""
    return re.sub(rf"(?<![^=]){re.escape(path)}(?=/|$)", lambda _: here, word)
