"""The built-in trainer as a script, on a virtual GPU that may lose memory once some steps have ended.

``TRAINER_ARGUMENTS`` are its command line, ``TRAINER_SHRINKS`` is like ``3:1000000``: bytes after three steps.
"""

from __future__ import annotations

import os
import sys

from memtune_runner import trainer
from memtune_runner.virtual import VirtualGpu

shrinks = os.environ.get("TRAINER_SHRINKS")
if shrinks:
    step, budget_bytes = map(int, shrinks.split(":"))
    assert VirtualGpu._active is not None
    VirtualGpu._active._budget_from_step = {step: budget_bytes}
sys.exit(trainer.main(os.environ["TRAINER_ARGUMENTS"].split()))
