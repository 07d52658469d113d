"""The built-in trainer as a script, with its command line in ``TRAINER_ARGUMENTS``."""

from __future__ import annotations

import os
import sys

from memtune_runner import trainer

sys.exit(trainer.main(os.environ["TRAINER_ARGUMENTS"].split()))
