"""`memtune emulate -- COMMAND`: the memory of a training command, measured on an emulated GPU."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from memtune.units import gib
from memtune_cli.errors import InputError
from memtune_cli.input.emulated_job import GPU
from memtune_cli.views.screen import Screen, stdout_screen

_METRICS = ("allocated", "active", "reserved")
_OF_JOBS = (".yaml", ".yml", ".json")
_TRIED = ("2.6", "2.13")


def run(arguments: argparse.Namespace) -> int:
    """Run the command in a child process and show the result that it writes."""
    if _is_job(arguments.words):
        if arguments.rank:
            raise InputError("--rank: a job is emulated as rank 0; leave it out")
        if arguments.ranks:
            raise InputError("--ranks: a job says itself how many GPUs it has; set spec.resources, or leave it out")
        if arguments.gpus:
            raise InputError("--gpus: a job says itself how many GPUs it has; set spec.resources, or leave it out")
        from memtune_cli.commands.emulate_job import run as run_job

        return run_job(arguments)
    for option in ("plan", "top", "timeline"):
        if getattr(arguments, option) is not None:
            raise InputError(f"--{option} is for a job: memtune emulate JOB.yaml --{option} ...")
    return _run_command(arguments)


def _is_job(words: Sequence[str]) -> bool:
    """Whether the single word is a job file rather than a command."""
    return len(words) == 1 and (words[0] == "-" or words[0].endswith(_OF_JOBS))


def _run_command(arguments: argparse.Namespace) -> int:
    from memtune_cli.views import json_output

    with TemporaryDirectory() as directory:
        output = Path(directory) / "result.json"
        words = ["--gpu", arguments.gpu or GPU, "--time-limit", str(arguments.time_limit), "--output", str(output)]
        if arguments.ranks:
            words += ["--ranks", str(arguments.ranks)]
        if arguments.rank:
            words += ["--rank", str(arguments.rank)]
        if arguments.gpus:
            words += ["--gpus", str(arguments.gpus)]
        if arguments.snapshot:
            words += ["--snapshot", str(arguments.snapshot)]
        command = [sys.executable, "-m", "memtune_runner", "emulate", *words, "--", *arguments.words]
        code = subprocess.run(command, check=False).returncode
        if not output.exists():
            return code  # the reason has been printed
        result = json.loads(output.read_text(encoding="utf-8"))
    if arguments.format == "table":
        screen = stdout_screen()
        print(screen.plain("\n".join(_page(screen, result))))
    else:
        print(json_output.dump({"version": json_output.VERSION, "command": "emulate", **result}, arguments.format))
    return code


def _page(screen: Screen, result: Mapping[str, Any]) -> Iterator[str]:
    from memtune_cli.views.emulate_page import NOTHING_KNOWN, asked, caveats, estimated, gpus, others, size

    gpu, measured = result["gpu"], result["measured"]
    alone = "one GPU" if result["gpus"] == 1 else f"{result['gpus']} GPUs"
    where = f"rank {result['rank']} of {result['ranks']}" if result["ranks"] > 1 else alone
    yield screen.bold(f"{gpu['product']} ({gpu['name']}, {gib(gpu['usableBytes'])}), emulated, {where}")
    yield f"  {_ending(result)}"
    if result["outcome"] == "failed" and measured and any(each["value"] != "true" for each in measured["values"]):
        yield "  It had read values that no kernel has computed, which are listed below and may be the reason."
    yield from _untried(result["torch"]["version"])
    if measured is None:
        yield from (f"  {line}" for line in (NOTHING_KNOWN, *others(result["otherProcesses"])))
        return
    yield ""
    yield screen.bold("Peaks")
    peaks, outside = measured["peakBytes"], result["outsideBytes"]
    for metric in _METRICS:
        yield f"  {metric:<12}{size(peaks[metric]):>12}"
    yield f"  {'outside':<12}{size(sum(outside.values())):>12}  not emulated, an estimate: {estimated(outside)}"
    yield f"  {'host':<12}{size(measured['hostPeakBytes']):>12}  of which pinned {size(measured['pinnedPeakBytes'])}"
    yield from gpus(screen, measured["peakBytesByGpu"])
    yield ""
    yield f"Allocator retries: {measured['allocatorRetries']}; out-of-memory errors: {measured['outOfMemoryErrors']}"
    yield asked(measured)
    yield from others(result["otherProcesses"])
    yield from caveats(measured)
    torch = result["torch"]
    yield screen.dim(f"torch {torch['version']}, CUDA {torch['cuda']}, cuDNN {torch['cudnn']}, NCCL {torch['nccl']}")


def _untried(version: str) -> Iterator[str]:
    """Warn if the emulation was never tested with this torch version."""
    if ".".join(version.split(".")[:2]) not in _TRIED:
        tried = " and ".join(_TRIED)
        yield f"  The emulated GPU was tried with torch {tried}, not with {version}: an error may be its own."


def _ending(result: Mapping[str, Any]) -> str:
    seconds, message = f"{result['seconds']:.1f} s", result["message"]
    if result["outcome"] == "completed":
        return f"Completed in {seconds}."
    if result["outcome"] == "outOfMemory":
        return f"Out of memory after {seconds}: {message}"
    if result["outcome"] == "timeLimit":
        return f"Ended after {seconds}, when its time was up; give a larger --time-limit if it needs more."
    if result["outcome"] == "hostMemory":
        return (
            f"Out of host memory after {seconds}: {message}; make the weights on the meta device, or give this machine "
            "more memory."
        )
    if result["outcome"] == "missingSymbol":
        return f"A library needs what the emulated GPU does not have, found after {seconds}: {message}."
    return f"Failed after {seconds} with exit code {result['exitCode']}" + (f": {message}" if message else ".")
