"""Finds the checkpoint that an attempt resumes from, and converts it if the plan needs that. Needs no torch."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from memtune.plans.plan import Plan
from memtune.plans.resume import Format, Resumption, Way, resumable, resumption
from memtune_runner.checkpoints import manifest as manifests
from memtune_runner.checkpoints import probe_saves
from memtune_runner.checkpoints.complete_checkpoints import Checkpoint, complete_checkpoints
from memtune_runner.checkpoints.manifest import Manifest, ManifestError
from memtune_runner.checkpoints.restart import set_aside
from memtune_runner.checkpoints.store import Store
from memtune_runner.rank.bad_input import BadInputError
from memtune_runner.rank.settings import Settings

Converter = Callable[[Checkpoint, Plan, int], Path]


class NotResumableError(BadInputError):
    """A checkpoint exists, but the plan cannot resume from it. The message names a plan that can."""


@dataclass(frozen=True)
class Resumed:
    """The checkpoint that a run resumes from."""

    directory: Path
    step: int
    samples: int
    format: Format


def resolve(settings: Settings, convert: Converter | None = None) -> Resumed | None:
    """Begin the attempt and return the newest complete checkpoint to resume from; None starts from the beginning.

    Call it on one node, before any worker starts. A probe starts from fresh weights and fences no other attempt.
    """
    root = probe_saves.job_path(settings)
    if root is not None:
        _check_writable(root)
    if settings.is_probe:
        probe_saves.make_anew(settings)
        return None
    if root is not None:
        Store(root, settings.attempt or 0, job_uid=settings.job_uid).write_fence()
        set_aside(root, settings)
        probe_saves.delete_left(root, settings)
    equals = _newest_equals(settings)
    if not equals:
        return None
    # An earlier conversion lies beside its source, with as many samples.
    for found in equals:
        if _entry(found.manifest, settings).way is Way.DIRECT:
            _tell_if_of_another_job(found, settings)
            return _resumed(found.directory, found.manifest)
    for found in equals:
        if _entry(found.manifest, settings).way is Way.CONVERT:
            _tell_if_of_another_job(found, settings)
            directory = (convert or _in_own_process)(found, settings.plan, settings.world)
            return _resumed(directory, manifests.read_complete(directory))
    raise NotResumableError(_refusal(equals[0], settings))


def _check_writable(path: Path) -> None:
    """Raise if the path is not writable. Probes check it too: measuring a plan that cannot save is pointless."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise BadInputError(
            f"spec.checkpoint.path: {path} cannot be written: {error.strerror}; "
            "give a directory that the container's user may write"
        ) from None


def _tell_if_of_another_job(found: Checkpoint, settings: Settings) -> None:
    """Warn if another job wrote the checkpoint: a re-created job should resume, one that shares the path should not."""
    if found.manifest.job_uid not in ("", settings.job_uid):
        print(
            f"memtune: the training resumes from {found.directory}, {found.manifest.samples} samples that another job "
            "saved; to begin at step 0, give this job a directory of its own",
            file=sys.stderr,
        )


def _newest_equals(settings: Settings) -> list[Checkpoint]:
    """Return the complete checkpoints with the most samples, or the one that the operator names."""
    named = settings.resume_from
    if named is not None and named != settings.checkpoint_path:
        try:
            return [Checkpoint(named, manifests.read_complete(named))]
        except ManifestError as error:
            raise NotResumableError(f"{error}; name a complete checkpoint, or none to take the newest") from None
    found = complete_checkpoints(settings.checkpoint_path) if settings.checkpoint_path else []
    return [each for each in found if each.manifest.samples == found[0].manifest.samples]


def _entry(manifest: Manifest, settings: Settings) -> Resumption:
    return resumption(manifest.format, manifest.plan, settings.plan, manifest.world == settings.world)


def _refusal(found: Checkpoint, settings: Settings) -> str:
    manifest = found.manifest
    fitting = resumable(manifest.format, manifest.plan, settings.plan, manifest.world == settings.world)
    advice = f"{fitting} can resume from it" if fitting else f"go back to {manifest.world} GPUs"
    return (
        f"{found.directory} was saved under {manifest.plan} on {manifest.world} GPUs as {manifest.format}, and "
        f"{settings.plan} on {settings.world} cannot resume from it: {_entry(manifest, settings).reason}; {advice}"
    )


def _resumed(directory: Path, manifest: Manifest) -> Resumed:
    return Resumed(directory, manifest.step, manifest.samples, manifest.format)


def _in_own_process(found: Checkpoint, plan: Plan, world: int) -> Path:
    """Convert in a subprocess, which frees its memory and keeps torch out of the launcher."""
    command = [sys.executable, "-m", "memtune_runner.checkpoints.convert", str(found.directory), "--plan", str(plan)]
    done = subprocess.run([*command, "--world", str(world)], stdout=subprocess.PIPE, text=True, check=False)
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        raise NotResumableError(f"{found.directory} could not be converted for {plan}; the log above says why")
    return Path(lines[-1])
