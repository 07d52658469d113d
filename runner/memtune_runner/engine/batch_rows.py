"""Operations on batches: nested tuples, lists and mappings of tensors whose first dimension is the rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from memtune_runner.rank.batch_tree import changed, columns

IGNORED_LABEL = -100  # excluded from the mean by torch's cross entropy and by Hugging Face models


def rows_of(batch: Any) -> int:
    """Return the number of rows of a batch."""
    tensors = _tensors(batch)
    if not tensors:
        raise ValueError("a batch must hold at least one tensor whose first dimension counts rows; this one holds none")
    rows = {each.shape[0] for each in tensors}
    if len(rows) > 1:
        raise ValueError(f"the tensors of a batch must agree in their first dimension; these have {sorted(rows)} rows")
    return rows.pop()


def rows_between(batch: Any, first: int, end: int) -> Any:
    """Return the rows from ``first`` up to ``end``."""
    return changed(batch, lambda _, each: each[first:end] if each.dim() else each)


def to_device(batch: Any, device: torch.device) -> Any:
    """Return the batch on a device."""
    return changed(batch, lambda _, each: each.to(device, non_blocking=True))


def filler_row(batch: Any) -> Any:
    """Return one row for a rank that has none: its own first row, or ones, which are a token and not masked."""
    if rows_of(batch):
        return rows_between(batch, 0, 1)
    return changed(batch, lambda _, each: each.new_ones(1, *each.shape[1:]) if each.dim() else each)


def count_tokens(batch: Any, shifts_labels: bool) -> int:
    """Count the elements in a mean loss over this batch: labels not ignored, else those of the first integer tensor.

    ``shifts_labels`` is for models that predict the next token inside: they never use the first label.
    """
    labels = batch.get("labels") if isinstance(batch, Mapping) else None
    if isinstance(labels, torch.Tensor):
        used = labels[:, 1:] if shifts_labels else labels
        return int((used != IGNORED_LABEL).sum()) if not used.is_floating_point() else used.shape[0]
    tokens = next((each for each in _tensors(batch) if _holds_tokens(each)), None)
    return rows_of(batch) if tokens is None else tokens.numel()


def _tensors(batch: Any) -> list[torch.Tensor]:
    return [each for _, each in columns(batch) if each.dim()]


def _holds_tokens(tensor: torch.Tensor) -> bool:
    return tensor.dim() == 2 and not tensor.is_floating_point()
