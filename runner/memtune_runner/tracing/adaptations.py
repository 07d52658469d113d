"""Libraries that do other things on tensors without data than on those with data, told to do the usual."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def usual_paths() -> Iterator[None]:
    """transformers looks into the positions for rows that hold several sequences, which need a mask.

    Without data it makes the mask in any case; a batch in training seldom has such rows, and then attention has none.
    """
    masks: Any = sys.modules.get("transformers.masking_utils")
    find = getattr(masks, "find_packed_sequence_indices", None)
    if find is None:
        yield
        return
    masks.find_packed_sequence_indices = lambda *_positions, **_options: None
    try:
        yield
    finally:
        masks.find_packed_sequence_indices = find
