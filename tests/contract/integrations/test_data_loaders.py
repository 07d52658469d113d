"""A script's data loader under the accelerate integration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import small_trainings
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler, TensorDataset

from memtune.plans.plan import Plan
from memtune.wire.run import RunKind
from memtune_runner.integrations.accelerate import _evaluated_less
from memtune_runner.integrations.loaders import in_micro_batches, training_loader
from memtune_runner.rank.settings import Settings

ROWS = TensorDataset(torch.zeros(64))


class Rows(IterableDataset[int]):
    """A stream of numbers."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(10))


def collate(rows: list[int]) -> list[int]:
    return rows


def begin(_: int) -> None:
    """A worker's init function."""


def loader_of(data: Any, **options: Any) -> DataLoader[Any]:
    return DataLoader(data, collate_fn=collate, **options)


def test_all_options_are_kept() -> None:
    options: dict[str, Any] = {
        "num_workers": 2,
        "worker_init_fn": begin,
        "generator": torch.Generator(),
        "prefetch_factor": 3,
        "persistent_workers": True,
        "pin_memory": True,
        "timeout": 7,
        "in_order": False,
        "multiprocessing_context": "fork",
    }
    loader = loader_of(range(10), batch_size=8, drop_last=True, shuffle=True, **options)
    made = in_micro_batches(loader, 4, None)
    assert {name: getattr(made, name) for name in options} == {name: getattr(loader, name) for name in options}
    assert (made.batch_size, made.drop_last, made.sampler) == (4, True, loader.sampler)
    assert (made.batch_sampler.batch_size, made.batch_sampler.drop_last) == (4, True)
    assert loader.batch_size == 8, "the script's own is as it was"
    assert loader.collate_fn is collate


def test_a_stream_comes_in_micro_batches() -> None:
    made = in_micro_batches(loader_of(Rows(), batch_size=8), 4, None)
    assert list(made) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert list(in_micro_batches(loader_of(Rows(), batch_size=8, drop_last=True), 4, None))[-1] == [4, 5, 6, 7]


def test_a_loader_that_has_begun_begins_anew() -> None:
    loader = loader_of(range(8), batch_size=8, num_workers=1, persistent_workers=True)
    list(loader)
    assert list(in_micro_batches(loader, 4, None)) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_only_torchs_own_batches_are_cut() -> None:
    class InPairs(BatchSampler):
        """Batches with a custom structure."""

    given = loader_of(range(8), batch_sampler=BatchSampler(SequentialSampler(range(8)), 8, drop_last=False))
    assert list(in_micro_batches(given, 4, None)) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    own = loader_of(range(4), batch_sampler=InPairs(SequentialSampler(range(4)), 2, drop_last=False))
    assert list(in_micro_batches(own, 4, None)) == [[0, 1], [2, 3]]
    assert list(in_micro_batches(loader_of([[1, 2], [3]], batch_size=None), 4, None)) == [[1, 2], [3]]


def test_the_loader_that_shuffles_or_streams_is_trained_on() -> None:
    ordered = loader_of(range(8), batch_size=2)
    shuffled = loader_of(range(8), batch_size=2, shuffle=True)
    in_batches = loader_of(range(8), batch_sampler=BatchSampler(RandomSampler(range(8)), 2, drop_last=False))
    for trained in (shuffled, in_batches, loader_of(Rows(), batch_size=2)):
        assert training_loader([ordered, trained]) is trained
    assert training_loader([ordered]) is ordered
    assert training_loader([]) is None


@pytest.mark.parametrize(
    ("loader", "split_batches", "size"),
    [
        (DataLoader(ROWS, batch_size=64), False, 16),
        (DataLoader(ROWS, batch_size=2), False, 2),  # never enlarged
        (DataLoader(ROWS, batch_size=64), True, 32),  # shared by two ranks
        (DataLoader(ROWS, batch_size=64, shuffle=True), False, 64),  # another training loader
        (DataLoader(ROWS, batch_size=None), False, None),
    ],
)
def test_an_evaluation_that_ran_out_of_memory_gets_smaller_batches_under_accelerate(
    loader: DataLoader[Any], split_batches: bool, size: int | None
) -> None:
    settings = Settings(Plan.parse("fp32-ddp-none-mb4x1"), RunKind.TRAIN, "accelerate", 8, 32, gpus_per_node=2)
    accelerator = SimpleNamespace(split_batches=split_batches, num_processes=2)
    assert _evaluated_less(loader, settings, accelerator) is loader
    changed = _evaluated_less(loader, replace(settings, evaluation_batch=16), accelerator)
    assert changed.batch_size == size


def test_a_loader_prepared_beside_the_training_loader_is_evaluated_in_these_batches(tmp_path: Path) -> None:
    script, plan = Path(__file__).parents[2] / "support" / "programs" / "language_modeling.py", "fp32-ddp-none-mb4x2"
    variables = {"INTEGRATION": "accelerate", "EVALUATION_BATCH": "2"}
    (outcome,) = small_trainings.run(script, plan, tmp_path, 1, ["--max-steps", "1"], **variables)
    assert outcome.exit_code == 0, outcome.output[-3000:]
    assert (outcome.report.applied.micro_batch, outcome.report.applied.evaluation_batch) == (4, 2)
