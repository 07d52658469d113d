"""Makes every batch of a probe as long as the job's sequences, so that the longest one is what was measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# What fills the new columns. A mask of ones, because masked positions may be left out by the attention; a label that
# counts, because an ignored one may be left out by the loss.
_FILLERS = {"input_ids": 0, "attention_mask": 1, "labels": 0, "token_type_ids": 0, "decoder_input_ids": 0}


class PaddingCollator:
    """A collator that pads what another one returns. A class, so that data loader workers can be given it."""

    def __init__(self, collate: Callable[[Any], Any], length: int) -> None:
        self._collate, self._length = collate, length

    def __call__(self, samples: Any) -> Any:
        return padded(self._collate(samples), self._length)


def padded(batch: Any, length: int) -> Any:
    """The batch, its token columns filled up to ``length``; of any other kind of batch nothing is known."""
    if not hasattr(batch, "items"):
        return batch
    for name, filler in _FILLERS.items():
        if name in batch and batch[name].ndim == 2 and batch[name].shape[1] < length:
            batch[name] = _wider(batch[name], length, filler)
    return batch


def _wider(tensor: Any, length: int, filler: int) -> Any:
    wide = tensor.new_full((tensor.shape[0], length), filler)
    wide[:, : tensor.shape[1]] = tensor
    return wide
