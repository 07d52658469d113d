"""``ResumableSampler``: a data order that continues by samples consumed, under any plan."""

from __future__ import annotations

import os
from collections.abc import Iterator

from memtune.wire.data_order import batches
from memtune_runner.rank.ranks import Rank
from memtune_runner.rank.settings import Settings, read_settings


class ResumableSampler:
    """An endless ``batch_sampler`` for torch's DataLoader, with this rank's share of each global batch::

        loader = DataLoader(dataset, batch_sampler=ResumableSampler(len(dataset), samples_done=engine.samples))

    Each epoch is shuffled differently; the order over all ranks is the same for any world size. Without
    ``samples_done``, it continues after the samples of the checkpoint that the run resumed from.
    """

    def __init__(
        self, dataset_len: int, seed: int = 0, samples_done: int | None = None, settings: Settings | None = None
    ) -> None:
        settings = settings or read_settings(os.environ)
        self._dataset_len, self._seed = dataset_len, seed
        self._global_batch, self._world = settings.global_batch, settings.world
        self._samples_done = settings.resume_samples if samples_done is None else samples_done

    def __iter__(self) -> Iterator[list[int]]:
        rank = Rank.read(os.environ).rank
        return batches(self._dataset_len, self._global_batch, self._seed, self._samples_done, rank, self._world)
