"""The manifest of a checkpoint: written last, it makes its directory a complete checkpoint."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from memtune.plans.plan import Plan
from memtune.plans.resume import Format

FILE_NAME = "memtune-manifest.json"
VERSION = 1
# Enough for the sizes of some ten thousand shards; a larger file was not written here.
_LARGEST_BYTES = 16 * 1024 * 1024


class ManifestError(ValueError):
    """A directory without a valid manifest. The message says why."""


@dataclass(frozen=True)
class Manifest:
    """The contents of a complete checkpoint: its place in the training, its format, and the size of each file."""

    step: int
    samples: int
    plan: Plan
    world: int
    format: Format
    attempt: int = 0
    job_uid: str = ""
    files: dict[str, int] = field(default_factory=dict)


def write(directory: Path, manifest: Manifest) -> None:
    """Write the manifest, which completes the checkpoint."""
    data = {
        "version": VERSION,
        "step": manifest.step,
        "samples": manifest.samples,
        "plan": manifest.plan.to_json(),
        "world": manifest.world,
        "format": manifest.format.value,
        "attempt": manifest.attempt,
        "job_uid": manifest.job_uid,
        "files": manifest.files,
    }
    temporary = directory / f".{FILE_NAME}.{os.getpid()}"
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(data, file, sort_keys=True, indent=1)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(directory / FILE_NAME)
    sync_directory(directory)


def read_complete(directory: Path) -> Manifest:
    """Read the manifest of a checkpoint and check its files; raise ManifestError if one is missing or incomplete."""
    path = directory / FILE_NAME
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            raise ManifestError(f"{path} is larger than any manifest")
        manifest = _parsed(json.loads(path.read_bytes()))
    except OSError as error:
        raise ManifestError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ManifestError(f"{path} is no manifest of version {VERSION}: {error}") from None
    for name, size_bytes in manifest.files.items():
        found_bytes = _size_bytes(directory / name)
        if found_bytes != size_bytes:
            raise ManifestError(f"{directory}: {name} has {found_bytes} bytes, its manifest says {size_bytes}")
    return manifest


def sizes(directory: Path) -> dict[str, int]:
    """Return the size in bytes of each file below the directory, except manifests."""
    return {
        path.relative_to(directory).as_posix(): path.stat().st_size
        for path in sorted(directory.rglob("*"))
        if path.is_file() and FILE_NAME not in path.name
    }


def sync_files(directory: Path) -> None:
    """fsync all files below the directory: a manifest must not survive a node failure that they do not."""
    for path in directory.rglob("*"):
        if path.is_file():
            _sync(path)
        elif path.is_dir():
            sync_directory(path)
    sync_directory(directory)


def sync_directory(directory: Path) -> None:
    """fsync the directory's entries."""
    _sync(directory)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _size_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _parsed(data: Any) -> Manifest:
    if data["version"] != VERSION:
        raise ValueError(f"version is {data['version']}")
    files = data["files"]
    if not files or not all(type(size) is int for size in files.values()):
        raise ValueError("files names no file and its size")
    # A name that leads out of the directory was not written here.
    if any(name.startswith("/") or ".." in name.split("/") for name in files):
        raise ValueError("files names one outside its directory")
    counts = {name: _count(data[name], name) for name in ("step", "samples", "world", "attempt")}
    # Older runners did not record the job.
    job_uid = str(data.get("job_uid", ""))
    plan, checkpoint_format = Plan.from_json(data["plan"]), Format(data["format"])
    return Manifest(**counts, plan=plan, format=checkpoint_format, job_uid=job_uid, files=files)


def _count(value: Any, name: str) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{name} is {value!r}, not a whole number of at least 0")
    return value


def accumulation_of(directory: Path, default: int) -> int:
    """Return the accumulation of the plan that wrote a checkpoint."""
    try:
        return read_complete(directory).plan.accumulation
    except ManifestError:
        return default
