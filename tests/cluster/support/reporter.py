"""A training script that trains nothing: it does what it is told, and reports as a worker would.

It runs in a pod below the runner's launcher, as `env python3 -c SOURCE ACTS`. The hooks leave code alone, so it needs
no torch and is there at once. What it reports goes through the runner's own code, so the contract is the real one.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memtune.wire.exit_codes import EXIT_CODES
from memtune.wire.report import Ending, Memory, Report
from memtune_runner.rank.ranks import Rank, own_directory, write_rank_report
from memtune_runner.rank.settings import Settings, read_settings

GO = "/tmp/go"


@dataclass(frozen=True)
class Act:
    """What one run does. One that ``waits`` does so until there is a file GO; ``peak`` is a share of the GPU's memory;
    ``noise`` is how many characters it prints on one line and tells in its report."""

    waits: bool = False
    ending: Ending = Ending.SUCCEEDED
    peak: float = 0.5
    noise: int = 0


WELL = Act()


def main(acts: dict[str, list[dict[str, Any]]]) -> int:
    """Do the act of this run: the Nth of its kind, the last one for all that come later."""
    settings = read_settings(os.environ)
    of_kind, number = acts[str(settings.kind)], int(settings.run.rpartition("-")[2])
    act = Act(**of_kind[min(number, len(of_kind)) - 1])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    print("x" * act.noise, flush=True)
    ending, exit_code = Ending.TERMINATED, 128 + signal.SIGTERM
    try:
        while act.waits and not Path(GO).exists():
            time.sleep(0.1)
        ending = Ending(act.ending)
        exit_code = EXIT_CODES.get(ending, int(ending is not Ending.SUCCEEDED))
    finally:
        report(settings, act, ending, exit_code)
    return exit_code


def report(settings: Settings, act: Act, ending: Ending, exit_code: int) -> None:
    """Leave the rank's report where the launcher looks for it."""
    rank, directory = Rank.read(os.environ), own_directory(os.environ)
    assert directory is not None
    total_bytes = settings.gpu_memory_bytes or 0
    peak_bytes = int(act.peak * total_bytes)
    memory = Memory(
        device_total_bytes=total_bytes,
        peak_allocated_bytes=peak_bytes,
        peak_active_bytes=peak_bytes,
        peak_reserved_bytes=peak_bytes,
        failed_request_bytes=total_bytes // 8 if ending is Ending.DEVICE_OOM else None,
        alloc_retries=0,
    )
    tokens = settings.global_batch * settings.sequence_length
    told = Report(
        ending,
        exit_code,
        rank=rank.rank,
        steps=settings.probe_steps or 10,
        memory=memory,
        step_seconds=1.0,
        tokens_per_second=float(tokens),
        message="x" * act.noise,
    )
    write_rank_report(directory, rank, told)


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
