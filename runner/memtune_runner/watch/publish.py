"""Connects a watch with the metrics: at most once a second, at the end of a step, the rank's numbers are written."""

from __future__ import annotations

from pathlib import Path

from memtune_runner import metrics
from memtune_runner.ranks import Rank
from memtune_runner.watch.statistics import Reading
from memtune_runner.watch.watch import Watch

# A real device lists all its blocks to find the largest free one, which takes milliseconds.
_LARGEST_BLOCK_EVERY_READINGS = 30


class Publisher:
    """Keeps one rank's sample up to date."""

    def __init__(self, watch: Watch, rank: Rank, directory: Path) -> None:
        settings = watch.settings
        self._watch, self._directory = watch, directory
        self._sample = metrics.Sample(rank.rank, str(settings.device), str(settings.plan))
        self._readings = 0
        self._largest_free_block_bytes = 0
        watch.when_stepped, watch.when_read = self._sample.stepped, self.read

    def read(self, reading: Reading) -> None:
        """The counters were read; write them down."""
        statistics = self._watch.statistics
        assert statistics is not None  # it has just been read
        if self._readings % _LARGEST_BLOCK_EVERY_READINGS == 0:
            self._largest_free_block_bytes = statistics.largest_free_block_bytes()
        self._readings += 1
        self._sample.read(reading, self._largest_free_block_bytes)
        self._sample.write(self._directory)
        statistics.reset_peaks()  # the next peaks are those of the next whole steps; the report keeps the highest


def publish(watch: Watch, rank: Rank, directory: Path, port: int) -> None:
    """Publish what the watch sees of this rank, and serve all ranks of the node if this is its first."""
    Publisher(watch, rank, directory)
    if metrics.serves(rank):
        metrics.serve(directory, port)
