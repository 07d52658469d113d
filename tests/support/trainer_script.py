"""The built-in trainer as a script, on a virtual GPU that may lose memory once some steps have ended.

``TRAINER_ARGUMENTS`` are its command line, ``TRAINER_SHRINKS`` is like ``3:1000000``: bytes after three steps.
"""

from __future__ import annotations

import os
import sys

from memtune_runner import trainer
from memtune_runner.virtual import VirtualGpu


def shrink_after(gpu: VirtualGpu, step: int, budget_bytes: int) -> None:
    """Take memory away, and what is cached with it: another process has come to the GPU."""
    gpu._budget_from_step = {step: budget_bytes}
    step_ended, steps = gpu.step_ended, iter(range(1, step + 1))

    def ended() -> None:
        step_ended()
        if next(steps, None) == step:
            gpu.empty_cache()

    gpu.step_ended = ended  # type: ignore[method-assign]  # of this one


shrinks = os.environ.get("TRAINER_SHRINKS")
if shrinks:
    assert VirtualGpu._active is not None
    shrink_after(VirtualGpu._active, *map(int, shrinks.split(":")))
sys.exit(trainer.main(os.environ["TRAINER_ARGUMENTS"].split()))
