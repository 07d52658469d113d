"""What `memtune run` finds in its state directory of a job that came to its end in an earlier call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from memtune_cli.errors import InputError
from memtune_cli.input.local_job import job_at


def earlier_result(manifest: dict[str, Any], directory: Path) -> str:
    """What to say before the result is shown again; empty where there is none yet.

    A job that was edited is refused: what is there is not its result, and nothing of it would run.
    """
    known = job_at(directory)
    status = known.get("status") or {}
    if status.get("phase") not in ("Succeeded", "Failed"):
        return ""
    if _as_written(known) != _as_written(manifest):
        raise InputError(
            f"{directory} has the result of an earlier call ({status['phase']}: {status.get('message', '')}), and the "
            f"job has been edited since; nothing was run; {begin_anew(directory)}"
        )
    return f"this is the result of an earlier call, and nothing is run now; {begin_anew(directory)}"


def begin_anew(directory: Path) -> str:
    """How a job of this machine begins anew."""
    return f"to begin anew, give another --state, or remove {directory}"


def _as_written(manifest: dict[str, Any]) -> dict[str, Any]:
    """The spec but for what `memtune run` itself puts there, its own interpreter and that it was interrupted, and for
    the price, on which no result depends."""
    spec = manifest.get("spec") or {}
    runner, resources = spec.get("runner") or {}, spec.get("resources") or {}
    unpriced = {name: value for name, value in resources.items() if name != "gpuHourPrice"}
    return {**spec, "resources": unpriced, "runner": {**runner, "python": ""}, "suspend": False}
