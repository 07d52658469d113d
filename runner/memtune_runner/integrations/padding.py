"""Makes every batch of a probe as long as the job's sequences, so that the longest one is what was measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class PaddingCollator:
    """A collator that pads what another one returns. A class, so that data loader workers can be given it."""

    def __init__(self, collate: Callable[[Any], Any], length: int) -> None:
        self._collate, self._length = collate, length

    def __call__(self, samples: Any) -> Any:
        from memtune_runner.rank.padding import padded  # it needs torch, which the script is to import first

        return padded(self._collate(samples), self._length, names_tell=True)
