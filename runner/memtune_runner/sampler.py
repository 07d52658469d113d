"""The order of the data for scripts of one's own: it goes on by the samples consumed, whatever the plan is."""

from __future__ import annotations

import os
from collections.abc import Iterator

from memtune.wire.data_order import batches
from memtune_runner.rank.ranks import Rank
from memtune_runner.rank.settings import Settings, read_settings


class ResumableSampler:
    """This rank's share of each global batch, for ever: a ``batch_sampler`` for torch's DataLoader::

        loader = DataLoader(dataset, batch_sampler=ResumableSampler(len(dataset), samples_done=engine.samples))

    Every epoch has an order of its own, and all ranks together the same one in any world. Without ``samples_done`` it
    goes on after those of the checkpoint that the run resumes from.
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
