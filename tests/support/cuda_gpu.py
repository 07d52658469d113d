"""Checks whether this machine can run tests/gpu: exits with 3 and one sentence if it cannot."""

from __future__ import annotations

import sys

from memtune_runner.rank.preflight import no_gpu

CANNOT_RUN = 3


def why_not() -> str | None:
    """Return why CUDA is not usable here; None if it is."""
    missing = no_gpu()
    return missing and f"they need a CUDA GPU, and {missing}"


if __name__ == "__main__":
    reason = why_not()
    print(reason or "")
    sys.exit(CANNOT_RUN if reason else 0)
