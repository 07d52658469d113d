"""Makes DeepSpeed run on CPU tensors, which are what a virtual GPU is made of."""

from __future__ import annotations

import os
from types import ModuleType


def choose_cpu() -> None:
    """Before DeepSpeed is imported: it would guess its accelerator from what is installed."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")


def adapt(deepspeed: ModuleType) -> None:
    """After it was imported, before it is used."""
    # Its kernel for collectives in shared memory would be compiled here, for a minute, and gloo does the same.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    # The virtual GPU computes fp16 slowly, but it computes it.
    deepspeed.get_accelerator().is_fp16_supported = lambda: True
