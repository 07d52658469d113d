"""Finds losses that compare the rows of a batch with each other: with a smaller batch they are another objective."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memtune_runner.rank import script_warnings

# Parts of the names of sentence-transformers' losses that do so.
_NAMES = (
    *("Negatives", "GIST", "CoSENT", "AnglE", "BatchAll", "BatchHard", "BatchSemiHard", "MegaBatch"),
    *("OnlineContrastive", "GlobalOrthogonal", "Flops"),
)


def warn_of(loss: Any, micro_batch: int, own_batch: int | None) -> None:
    """Warn if such a loss of a script, or one for each data set, sees another batch than the script's own."""
    if own_batch in (None, micro_batch):
        return
    losses = loss.values() if isinstance(loss, Mapping) else [loss]
    names = [type(part).__name__ for each in losses if hasattr(each, "modules") for part in each.modules()]
    found = next((name for name in names if any(known in name for known in _NAMES)), None)
    if found is not None:
        script_warnings.warn(
            f"{found} compares the rows of a batch with each other, so in batches of {micro_batch} it is not the loss "
            f"of the script's {own_batch}: set tuning.space.microBatch [{own_batch}], and training.globalBatchSize to "
            "a multiple",
            once="loss of a batch",
        )
