"""Starts processes that end right after a backward pass, while they keep autograd's thread from the GIL."""

from __future__ import annotations

import subprocess
import sys

_CHILD = """
import sys
import torch
sys.setswitchinterval(1000)
weight = torch.ones(3, device="cuda", requires_grad=True)
(2 * weight).sum().backward()
"""

if __name__ == "__main__":
    for _ in range(4):
        subprocess.run([sys.executable, "-c", _CHILD], check=True)
