"""Warnings about a script that may continue, printed to the log and written to the report."""

from __future__ import annotations

import os
import sys

from memtune.wire.report import LARGEST_WARNING

_BETWEEN, _CUT = "; ", "..."

_texts: dict[str, str] = {}
_printed: set[str] = set()


def warn(text: str, *, once: str) -> None:
    """Issue a warning, once for each value of ``once``.

    Call it on every rank, since any rank's report may become the run's. Only rank 0 prints it to the log at once.
    """
    if once in _texts:
        return
    _texts[once] = text
    if os.environ.get("RANK", "0") == "0":
        _print(text)


def withdraw(once: str) -> None:
    """Take a warning back, because another one says more of the same."""
    _texts.pop(once, None)


def is_issued(once: str) -> bool:
    """Whether this warning stands."""
    return once in _texts


def collected() -> str:
    """Return the warnings of this process in order, as many as fit whole into the report's field.

    The advice stands at the end of a warning. So none is cut, except one that is too long by itself. Warnings that are
    omitted or cut are in the log, on any rank.
    """
    texts = list(_texts.values())
    for count in range(len(texts), 0, -1):
        whole = _joined(texts[:count], len(texts) - count)
        if len(whole) <= LARGEST_WARNING:
            _print(*texts[count:])
            return whole
    if not texts:
        return ""
    _print(*texts)
    too_many = len(_joined(texts[:1], len(texts) - 1)) - LARGEST_WARNING
    return _joined([f"{texts[0][: -too_many - len(_CUT)]}{_CUT}"], len(texts) - 1)


def _print(*texts: str) -> None:
    for each in texts:
        if each not in _printed:
            _printed.add(each)
            print(f"memtune: {each}", file=sys.stderr, flush=True)


def _joined(texts: list[str], others: int) -> str:
    return _BETWEEN.join([*texts, *([f"{others} more in the log"] if others else [])])


def reset() -> None:
    """Reset to the start of a run."""
    _texts.clear()
    _printed.clear()
