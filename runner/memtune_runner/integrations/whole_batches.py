"""Micro-batches for a loader that drops its last incomplete batch.

If micro-batches were dropped instead, the rows of an epoch and the position of a resume would depend on the plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from torch.utils.data import BatchSampler


class WholeBatches(BatchSampler):
    """Micro-batches of the rows in batches of ``own_size``; rows that those would drop at the end are dropped."""

    def __init__(self, sampler: Any, batch_size: int, own_size: int) -> None:
        super().__init__(sampler, batch_size, drop_last=False)
        self._own_size = own_size

    @property
    def rows(self) -> int:
        """The rows of a pass."""
        return len(self.sampler) // self._own_size * self._own_size  # type: ignore[arg-type]  # torch's has a length

    def __iter__(self) -> Iterator[list[int]]:
        rows = islice(self.sampler, self.rows)
        while batch := list(islice(rows, self.batch_size)):
            yield batch

    def __len__(self) -> int:
        return -(-self.rows // self.batch_size)
