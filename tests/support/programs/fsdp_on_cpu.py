"""A worker that makes accelerate take its virtual GPU for a real one.

accelerate shards over GPUs only, and the plan is refused without one. FSDP2 itself shards CPU tensors, so saving and
loading under it can be tested here.
"""

from __future__ import annotations

import os
import sys

import watched_worker
from accelerate.state import PartialState  # type: ignore[import-untyped]  # accelerate ships no types
from accelerate.utils import DistributedType  # type: ignore[import-untyped]  # as above
from torch import distributed

from memtune_runner.integrations import huggingface_arguments

if __name__ == "__main__":
    os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"
    PartialState._prepare_backend = lambda *_, **__: ("gloo", DistributedType.MULTI_GPU)
    huggingface_arguments.refuse = lambda settings: None  # noqa: ARG005  # called by name or not, it takes the same
    distributed.init_process_group("gloo")
    watched_worker.main(sys.argv[1])
    distributed.destroy_process_group()
