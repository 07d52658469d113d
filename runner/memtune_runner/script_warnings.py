"""What a script should do otherwise although its run can go on: said in the log, and in the report for the job."""

from __future__ import annotations

import os
import sys

_texts: dict[str, str] = {}


def warn(text: str, *, once: str) -> None:
    """Warn of something, only the first time of each kind ``once``.

    Every rank should: the report of any of them may become the run's. The log has it from rank 0 alone.
    """
    if once in _texts:
        return
    _texts[once] = text
    if os.environ.get("RANK", "0") == "0":
        print(f"memtune: {text}", file=sys.stderr, flush=True)


def told() -> str:
    """All warnings of this process, the first one first."""
    return "; ".join(_texts.values())


def reset() -> None:
    """Back to the beginning of a run."""
    _texts.clear()
