"""The result of an earlier `memtune run` of the same job in the state directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from memtune_cli.errors import InputError
from memtune_cli.input.local_job import job_at


def earlier_result(manifest: dict[str, Any], directory: Path) -> str:
    """The message before an earlier result is shown again; empty if there is none.

    An edited job is refused: the result is not its own, and nothing would run.
    """
    known = job_at(directory)
    status = known.get("status") or {}
    if status.get("phase") not in ("Succeeded", "Failed"):
        return ""
    if _as_written(known) != _as_written(manifest):
        # The next step comes first: the message of a failed job is long.
        raise InputError(
            f"nothing was run, because the job was edited after it had ended; {begin_anew(directory)}. The earlier "
            f"call ended as {status['phase']}: {status.get('message', '')}"
        )
    return f"this is the result of an earlier call, and nothing is run now; {begin_anew(directory)}"


def begin_anew(directory: Path) -> str:
    """The hint how to start a local job afresh."""
    return f"to start over, give another --state, or remove {directory}"


def _as_written(manifest: dict[str, Any]) -> dict[str, Any]:
    """The spec without the fields that `memtune run` sets (interpreter, suspension) and without the price, which does
    not affect the result."""
    spec = manifest.get("spec") or {}
    runner, resources = spec.get("runner") or {}, spec.get("resources") or {}
    unpriced = {name: value for name, value in resources.items() if name != "gpuHourPrice"}
    return {**spec, "resources": unpriced, "runner": {**runner, "python": ""}, "suspend": False}
