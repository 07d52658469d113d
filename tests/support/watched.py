"""Starts the workers of a small run on virtual GPUs and reads their reports."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from memtune.plans.plan import Plan
from memtune.units import GIB
from memtune.wire.report import Report, read_report
from memtune_runner.rank.ranks import Rank, report_path

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "examples" / "scripts"
WORKER = Path(__file__).parent / "programs" / "watched_worker.py"
LIMIT_SECONDS = 240


class Outcome(NamedTuple):
    """The result of one rank."""

    exit_code: int
    report: Report
    output: str


def run(
    script: Path, plan: str, directory: Path, world: int = 1, arguments: Sequence[str] = (), **variables: str
) -> list[Outcome]:
    """Run a script under a plan on ``world`` ranks; ``variables`` without their prefix MEMTUNE_."""
    return run_by(WORKER, script, plan, directory, world, arguments, **variables)


def run_by(
    worker: Path,
    script: Path,
    plan: str,
    directory: Path,
    world: int = 1,
    arguments: Sequence[str] = (),
    **variables: str,
) -> list[Outcome]:
    """The same with a custom worker."""
    parsed = Plan.parse(plan)
    own = [str(ROOT / each) for each in ("core", "runner")]
    environment = {
        **os.environ,
        # Besides our own paths, the caller's additional ones, such as separate libraries.
        "PYTHONPATH": os.pathsep.join([*own, *filter(None, [os.environ.get("PYTHONPATH")])]),
        "MEMTUNE_PLAN": plan,
        "MEMTUNE_MICRO_BATCH": str(parsed.micro_batch),
        "MEMTUNE_ACCUMULATION": str(parsed.accumulation),
        "MEMTUNE_RUN_KIND": "train",
        "MEMTUNE_GLOBAL_BATCH": str(parsed.global_batch(world)),
        "MEMTUNE_SEQUENCE_LENGTH": "32",
        "MEMTUNE_GPUS_PER_NODE": str(world),
        "MEMTUNE_DEVICE": "virtual",
        "MEMTUNE_GPU_MEMORY_BYTES": str(GIB),
        "MEMTUNE_RANK_DIRECTORY": str(directory),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        "OMP_NUM_THREADS": "1",
        **{f"MEMTUNE_{name}": value for name, value in variables.items()},
    }
    ranks = [Rank(number, number, world, world, 0) for number in range(world)]
    workers = [_start([str(worker), str(script), *arguments], environment, rank) for rank in ranks]
    try:
        outputs = [each.communicate(timeout=LIMIT_SECONDS)[0] for each in workers]
    finally:
        for each in workers:
            each.kill()
    return [
        Outcome(each.returncode, _report(directory, rank, output), output)
        for each, rank, output in zip(workers, ranks, outputs, strict=True)
    ]


def _start(words: Sequence[str], environment: dict[str, str], rank: Rank) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *words],
        env={**environment, **rank.variables()},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _report(directory: Path, rank: Rank, output: str) -> Report:
    path = report_path(directory, rank)
    assert path.exists(), f"rank {rank.rank} left no report; it wrote:\n{output[-3000:]}"
    return read_report(path.read_bytes())


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
