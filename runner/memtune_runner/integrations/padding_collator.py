"""Pads every batch of a probe to the job's sequence length, so that the longest batch is measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class PaddingCollator:
    """A collator that pads another one's result. A class, so that it can be pickled for data loader workers."""

    def __init__(self, collate: Callable[[Any], Any], length: int) -> None:
        self._collate, self._length = collate, length

    def __call__(self, samples: Any) -> Any:
        from memtune_runner.rank.padding import padded  # needs torch, which the script should import first

        return padded(self._collate(samples), self._length, names_tell=True)
