"""Warnings about a script that may continue, printed to the log and written to the report."""

from __future__ import annotations

import os
import sys

from memtune.wire.report import LARGEST_WARNING

_BETWEEN, _CUT = "; ", "..."

_texts: dict[str, str] = {}


def warn(text: str, *, once: str) -> None:
    """Issue a warning, once for each value of ``once``.

    Call it on every rank, since any rank's report may become the run's. Only rank 0 prints it to the log.
    """
    if once in _texts:
        return
    _texts[once] = text
    if os.environ.get("RANK", "0") == "0":
        print(f"memtune: {text}", file=sys.stderr, flush=True)


def collected(*more: str) -> str:
    """Return all warnings of this process in order, then ``more``, each cut to its share of the report's field."""
    texts = [*_texts.values(), *filter(None, more)]
    left = LARGEST_WARNING - len(_BETWEEN) * (len(texts) - 1)
    shares = [0] * len(texts)
    by_length = sorted(range(len(texts)), key=lambda place: len(texts[place]))
    for before, place in enumerate(by_length):  # short texts leave their unused share to longer ones
        shares[place] = min(len(texts[place]), left // (len(texts) - before))
        left -= shares[place]
    return _BETWEEN.join(_cut(text, share) for text, share in zip(texts, shares, strict=True))


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - len(_CUT)]}{_CUT}"


def reset() -> None:
    """Reset to the start of a run."""
    _texts.clear()
