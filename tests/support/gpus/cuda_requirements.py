"""Whether this machine can run tests/gpu: exits with 3 and one sentence if it cannot."""

from __future__ import annotations

import os
import sys

from memtune.wire.environment import EMULATED_GPU
from memtune_runner.rank.preflight import no_gpu

CANNOT_RUN = 3
# An emulated GPU is there in the same words as a real one, and this alone tells them apart.
IS_EMULATED = EMULATED_GPU in os.environ


def why_not() -> str | None:
    """Why CUDA cannot be used here; None if it can."""
    missing = no_gpu()
    return missing and f"they need a CUDA GPU, and {missing}"


if __name__ == "__main__":
    reason = why_not()
    print(reason or "")
    sys.exit(CANNOT_RUN if reason else 0)
