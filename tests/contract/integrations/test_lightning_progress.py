"""How far a Trainer of Lightning was, counted in the batches of another plan."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from memtune.plans.plan import Plan
from memtune.wire.run import RunKind
from memtune_runner.integrations.lightning import trainer
from memtune_runner.integrations.lightning.progress import Cut, goes_on, recounted
from memtune_runner.rank.settings import Settings
from memtune_runner.rank.training_length import LibraryLength


def progress(now: int, total: int, is_last: bool) -> dict[str, Any]:
    """As Lightning has it in a callback at the end of a batch: completed comes behind it."""
    counts = [{"ready": n, "started": n, "processed": n, "completed": n - 1} for n in (now, total)]
    return {"current": counts[0], "total": counts[1], "is_last_batch": is_last}


@pytest.mark.parametrize(
    ("state", "saved", "wanted", "expected"),
    [
        (progress(8, 8, False), Cut(4, 2, 1), Cut(2, 4, 1), (16, 16)),
        (progress(8, 17, False), Cut(4, 2, 1), Cut(2, 2, 2), (8, 17)),
        # The first of two batches of a step is trained again.
        (progress(5, 5, False), Cut(4, 2, 1), Cut(8, 1, 1), (2, 2)),
        # 36 samples: nine batches of 4 are five of 8.
        (progress(9, 18, True), Cut(4, 2, 1), Cut(8, 1, 1), (5, 10)),
    ],
)
def test_batches_are_counted_anew(state: dict[str, Any], saved: Cut, wanted: Cut, expected: tuple[int, int]) -> None:
    found = recounted(state, saved, wanted, across_epochs=False)
    assert (found["current"]["processed"], found["total"]["processed"]) == expected
    assert all(each["completed"] == each["processed"] - 1 for each in (found["current"], found["total"]))
    assert found["is_last_batch"] is state["is_last_batch"]


def test_a_step_of_deepspeed_may_begin_in_the_epoch_before() -> None:
    found = recounted(progress(7, 16, False), Cut(4, 2, 1), Cut(2, 4, 1), across_epochs=True)
    assert found["current"]["processed"] == 14, "nine batches of the epoch before and these seven are eight steps"


def test_limits_that_count_batches_are_of_the_same_samples() -> None:
    plan = Plan.parse("fp32-ddp-none-mb4x2")
    limited = SimpleNamespace(limit_train_batches=5, val_check_interval=0.5)
    trainer._scale_limits(limited, 6 / 4, Settings(plan, RunKind.TRAIN, "lightning", 8, 32))
    assert limited.limit_train_batches == 8, "30 samples, and no fewer"
    assert limited.val_check_interval == 0.5, "a share of an epoch stays"


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(8))


def test_a_stream_begins_anew_and_the_log_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    loader = DataLoader(Stream(), batch_size=2)
    goes_on(loader, 1, 3)
    assert len(list(loader)) == 4
    assert "behind 3 batches of epoch 1, which are not skipped" in capsys.readouterr().err


@pytest.mark.parametrize(("asked", "expected"), [(2, 2), (64, 16)])
def test_an_evaluation_batch_is_lowered_and_never_raised(asked: int, expected: int) -> None:
    settings = Settings(Plan.parse("fp32-ddp-none-mb4x2"), RunKind.TRAIN, "lightning", 8, 32, evaluation_batch=16)
    loader = DataLoader(TensorDataset(torch.zeros(64)), batch_size=asked)
    stage = SimpleNamespace(value="validate")
    found = trainer._process(settings, trainer.FitLength(settings, LibraryLength(), int))(
        lambda *_: loader, None, None, stage, None
    )
    assert found.batch_size == expected
