"""A worker whose virtual GPU accelerate takes for a real one.

accelerate shards over GPUs only, and the plan is refused where there is none. FSDP2 itself shards CPU tensors, so what
is saved and loaded under it can be tried here.
"""

from __future__ import annotations

import os
import sys

import watched_worker
from accelerate.state import PartialState  # type: ignore[import-untyped]  # accelerate ships no types
from accelerate.utils import DistributedType  # type: ignore[import-untyped]  # as above
from torch import distributed

from memtune_runner.integrations import arguments

if __name__ == "__main__":
    os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"
    PartialState._prepare_backend = lambda *_, **__: ("gloo", DistributedType.MULTI_GPU)
    arguments.refuse = lambda settings: None  # noqa: ARG005  # called by name or not, it takes the same
    distributed.init_process_group("gloo")
    watched_worker.main(sys.argv[1])
    distributed.destroy_process_group()
