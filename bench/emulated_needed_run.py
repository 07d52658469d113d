"""Shrinks the emulated GPU until a training runs out of memory: the least memory under which each plan completes.

    python bench/emulated_needed_run.py FILE MODEL PLAN:RANKS [PLAN:RANKS ...]

Run by `memtune emulate`. Each plan adds a line of JSON to FILE: its peaks without a limit, the least limit under which
it ran to its end, and how often its allocator had to empty its cache there.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import emulated_pair_run

# The bisection ends when the limits are this share of the peak apart.
_PRECISION = 1 / 100


def least_limit(model: str, words: str, ranks: int, lengths: Sequence[int] = ()) -> dict[str, Any]:
    """Bisect between the live bytes, which no limit can be below, and the peak without a limit."""
    free = emulated_pair_run.in_a_fork(model, words, ranks, lengths=lengths)
    if "problem" in free:
        return free
    enough, too_little, flushes = free["reservedBytes"], free["allocatedBytes"] - 1, 0
    while enough - too_little > free["reservedBytes"] * _PRECISION:
        limit = (enough + too_little) // 2
        found = emulated_pair_run.in_a_fork(model, words, ranks, limit_bytes=limit, lengths=lengths)
        if "OutOfMemoryError" in found.get("problem", ""):
            too_little = limit
        elif "problem" in found:
            return found
        else:
            enough, flushes = limit, found["retries"]
    kept = {name: free[name] for name in ("allocatedBytes", "reservedBytes")}
    return {**kept, "neededBytes": enough, "flushes": flushes}


if __name__ == "__main__":
    sys.exit(emulated_pair_run.main(sys.argv[1:], least_limit))
