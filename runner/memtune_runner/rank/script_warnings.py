"""What a script should do otherwise although its run can go on: said in the log, and in the report for the job."""

from __future__ import annotations

import os
import sys

from memtune.wire.report import LARGEST_WARNING

_BETWEEN, _CUT = "; ", "..."

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


def told(*more: str) -> str:
    """All warnings of this process, the first one first, and ``more``, with a share of the report's field for each."""
    texts = [*_texts.values(), *filter(None, more)]
    left = LARGEST_WARNING - len(_BETWEEN) * (len(texts) - 1)
    shares = [0] * len(texts)
    by_length = sorted(range(len(texts)), key=lambda place: len(texts[place]))
    for before, place in enumerate(by_length):  # what a short one leaves is for those that are longer
        shares[place] = min(len(texts[place]), left // (len(texts) - before))
        left -= shares[place]
    return _BETWEEN.join(_cut(text, share) for text, share in zip(texts, shares, strict=True))


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - len(_CUT)]}{_CUT}"


def reset() -> None:
    """Back to the beginning of a run."""
    _texts.clear()
