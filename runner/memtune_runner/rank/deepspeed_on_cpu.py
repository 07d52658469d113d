"""Makes DeepSpeed run on CPU tensors, which the virtual GPU uses."""

from __future__ import annotations

import os
from types import ModuleType


def choose_cpu() -> None:
    """Choose the CPU accelerator before DeepSpeed is imported; otherwise it guesses from installed packages."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")


def adapt(deepspeed: ModuleType) -> None:
    """Adapt DeepSpeed after its import and before its use."""
    # Compiling the shared-memory communication kernel would take a minute; gloo does the same.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    # The virtual GPU computes fp16 slowly, but it does.
    deepspeed.get_accelerator().is_fp16_supported = lambda: True
