"""The built-in trainer with DeepSpeed's offload to a disk."""

import sys

import disk_libraries  # noqa: F401  # DeepSpeed finds them

from memtune_runner.trainer import main

sys.exit(main())
