"""The `emulate` subcommand: runs a command as one rank on an emulated GPU and writes what its memory did."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import memtune
import memtune_runner
from memtune.gpus.gpu import chip_of
from memtune.units import counted
from memtune_runner.command import checks, worker_command
from memtune_runner.command.command import Command, CommandError, parse
from memtune_runner.emulated import exit_codes, installed_torch, nvidia_smi, outcomes
from memtune_runner.emulated.errors import EmulationError
from memtune_runner.emulated.rank_count import MOST_GPUS, RankPosition, named_gpus, of_command, of_node
from memtune_runner.emulated.variables import known_gpu, outside_bytes, prepended
from memtune_runner.emulated.variables import variables as on_gpu

# The time that a command gets to write its memory down after its limit.
_GRACE_SECONDS = 10


class Request(NamedTuple):
    """The settings of an emulation."""

    gpu: str
    ranks: int | None
    rank: int
    gpus: int | None
    time_limit: int
    snapshot: Path | None
    words: tuple[str, ...]


def main(words: Sequence[str]) -> int:
    """Emulate as the command line says. ``--output`` gets the result; the exit code says how the command ended."""
    parser = argparse.ArgumentParser(prog="python -m memtune_runner emulate")
    parser.add_argument("--gpu", required=True)
    parser.add_argument("--ranks", type=int)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--gpus", type=int)
    parser.add_argument("--time-limit", type=int, required=True)
    parser.add_argument("--snapshot", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("words", nargs="+")
    given = parser.parse_args(words)
    request = Request(
        given.gpu, given.ranks, given.rank, given.gpus, given.time_limit, given.snapshot, tuple(given.words)
    )
    try:
        result = emulate(request)
    except EmulationError as error:
        print(f"memtune: {error}", file=sys.stderr)
        return error.exit_code
    given.output.write_text(json.dumps(result), encoding="utf-8")
    return exit_codes.OF_OUTCOME[result["outcome"]]


def emulate(request: Request) -> dict[str, Any]:
    """Run the command and return what its memory did."""
    gpu = known_gpu(request.gpu)
    try:
        given = parse(request.words)
    except CommandError as error:
        raise EmulationError(str(error)) from None
    command = checks.of_console_script(given)
    torch = installed_torch.find(command)
    ranks = request.ranks or of_command(given, request.words)
    if request.rank >= ranks:
        raise EmulationError(f"--rank {request.rank}: the last of {ranks} ranks is {ranks - 1}; give --ranks")
    rank = RankPosition(request.rank, ranks, of_node(given, request.words, ranks))
    gpus = request.gpus or max(rank.of_node, named_gpus(os.environ.get("CUDA_VISIBLE_DEVICES", "")))
    if request.gpus and not rank.of_node <= gpus <= MOST_GPUS:
        least = rank.of_node
        raise EmulationError(f"--gpus {gpus}: a node of {counted(least, 'rank')} has {least} to {MOST_GPUS} GPUs")
    variables = {
        **os.environ,
        **on_gpu(gpu, ranks, gpus, torch),
        **(rank.variables() if ranks > 1 or command.launcher else {}),
        **worker_command.variables(command),
    }
    started = time.monotonic()
    code, told = _run(torch.python, _task(command, rank, request.snapshot), variables, request.time_limit)
    return {
        "gpu": {"name": gpu.name, "product": chip_of(gpu.name).product, "usableBytes": gpu.usable_bytes},
        "ranks": ranks,
        "rank": rank.number,
        "gpus": gpus,
        "outcome": _outcome(code, told),
        "message": outcomes.of_process(code, told)[1],
        "exitCode": code,
        "seconds": round(time.monotonic() - started, 1),
        "measured": told.get("measured"),
        "otherProcesses": told.get("otherProcesses"),
        "outsideBytes": outside_bytes(ranks),
        "torch": {
            "version": torch.torch, "cuda": torch.cuda,
            "cudnn": ".".join(map(str, torch.cudnn)), "nccl": ".".join(map(str, torch.nccl)),
        },
    }  # fmt: skip


def _outcome(code: int | None, measured: Mapping[str, Any]) -> str:
    if code is None:
        return exit_codes.TIME_LIMIT
    if measured.get("outOfMemory"):
        return exit_codes.OUT_OF_MEMORY
    return outcomes.of_process(code, measured)[0] or (exit_codes.FAILED if code else exit_codes.COMPLETED)


def _task(command: Command, rank: RankPosition, snapshot: Path | None) -> dict[str, Any]:
    told = [f"{command.local_rank}={rank.local}"] if command.local_rank else []
    return {
        "kind": command.kind.value, "target": command.target, "arguments": [*told, *command.arguments],
        "ranks": rank.ranks, "snapshot": str(snapshot.absolute()) if snapshot else None,
    }  # fmt: skip


def _run(
    python: Sequence[str], task: Mapping[str, Any], variables: Mapping[str, str], time_limit: int
) -> tuple[int | None, dict[str, Any]]:
    """Return the exit code, or None after a timeout, and what the process has written."""
    with tempfile.TemporaryDirectory() as temporary:
        directory, told = Path(temporary), Path(temporary, "result.json")
        for package in (memtune, memtune_runner):
            # The command's Python gets these two packages and nothing else of MemTune's.
            (directory / package.__name__).symlink_to(Path(str(package.__file__)).parent)
        path = prepended(temporary, variables.get("PYTHONPATH"))
        programs = nvidia_smi.beside(directory, python[0], variables.get("PATH"))
        words = [*python, "-m", "memtune_runner", "emulated", json.dumps({**task, "told": str(told)})]
        # Standard output belongs to the report.
        process = subprocess.Popen(
            words, env={**variables, "PYTHONPATH": path, "PATH": programs}, stdin=subprocess.DEVNULL, stdout=sys.stderr,
            start_new_session=True,
        )  # fmt: skip
        try:
            code: int | None = process.wait(time_limit)
        except subprocess.TimeoutExpired:
            code = None
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_SECONDS)
        finally:
            # End what the command has started, too.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return code, json.loads(told.read_text(encoding="utf-8")) if told.exists() else {}
