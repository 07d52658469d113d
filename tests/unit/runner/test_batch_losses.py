"""Which losses of sentence-transformers are said to be others in smaller batches."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from memtune_runner.integrations import batch_losses
from memtune_runner.rank import script_warnings


class Loss:
    """A loss without parts."""

    def modules(self) -> Iterator[Loss]:
        """Return it."""
        yield self


@pytest.mark.parametrize(
    ("name", "is_told"),
    [
        ("MultipleNegativesRankingLoss", True),
        ("OnlineContrastiveLoss", True),
        ("GlobalOrthogonalRegularizationLoss", True),
        ("FlopsLoss", True),
        ("ContrastiveLoss", False),
        ("CosineSimilarityLoss", False),
    ],
)
def test_a_loss_that_compares_rows_is_reported(name: str, is_told: bool) -> None:
    script_warnings.reset()
    batch_losses.warn_of(type(name, (Loss,), {})(), micro_batch=2, own_batch=8)
    assert script_warnings.collected().startswith(f"{name} compares the rows of a batch") is is_told
    script_warnings.reset()
