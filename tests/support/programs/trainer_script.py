"""The built-in trainer as a script. ``TRAINER_ARGUMENTS`` are its command line."""

from __future__ import annotations

import os
import sys

from memtune_runner import trainer

sys.exit(trainer.main(os.environ["TRAINER_ARGUMENTS"].split()))
