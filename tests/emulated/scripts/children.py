"""Starts Python processes that use the GPU, as scripts with a launcher of their own do; their values are followed."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

_CHILD = """
import sitecustomize
import torch
numbers = torch.arange(64, device="cuda")
weight = torch.ones(3, device="cuda", requires_grad=True)
(2 * weight).sum().backward()
print(sitecustomize.own, int(numbers.sum()), int(numbers.max()), bool(weight.grad.isfinite().all()))
"""


def summed(count: int) -> int:
    """What a process of a pool reads of the GPU."""
    import torch

    return int(torch.full((count,), 64, device="cuda").sum())


if __name__ == "__main__":
    for path in (os.environ["PYTHONPATH"], os.pathsep.join(sys.path)):
        subprocess.run([sys.executable, "-c", _CHILD], env={**os.environ, "PYTHONPATH": path}, check=True)
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        print(pool.submit(summed, 3).result())
