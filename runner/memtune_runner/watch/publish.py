"""Publishes a watch's numbers as metrics: after a step, at most once a second, and after a failed allocation."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from memtune_runner.rank import metrics
from memtune_runner.rank.memory_counters import Reading
from memtune_runner.rank.ranks import Rank
from memtune_runner.watch.watch import Watch

# On a real device, finding the largest free block lists all blocks, which takes milliseconds.
_LARGEST_BLOCK_EVERY_READINGS = 30
# Prometheus scrapes every 15 to 60 s; a peak that lasted one step must still be there.
PEAKS_KEPT_SECONDS = 60.0
_PEAKS = ("peak_allocated_bytes", "peak_active_bytes", "peak_reserved_bytes", "peak_inactive_split_bytes")


class Peaks:
    """The highest value of each peak over the current and the previous window."""

    def __init__(self) -> None:
        self._window = 0
        self._before: dict[str, int] = {}
        self._now: dict[str, int] = {}

    def held(self, reading: Reading, seconds: float) -> Reading:
        """Return the reading with its peaks replaced by those kept."""
        window = int(seconds // PEAKS_KEPT_SECONDS)
        if window != self._window:
            self._before = self._now if window == self._window + 1 else {}
            self._window, self._now = window, {}
        self._now = {name: max(getattr(reading, name), self._now.get(name, 0)) for name in _PEAKS}
        return replace(reading, **{name: max(size, self._before.get(name, 0)) for name, size in self._now.items()})


class Publisher:
    """Updates one rank's sample."""

    def __init__(self, watch: Watch, rank: Rank, directory: Path) -> None:
        settings = watch.settings
        self._watch, self._directory = watch, directory
        self._sample = metrics.Sample(rank.rank, str(settings.device), str(settings.plan))
        self._peaks = Peaks()
        self._readings = 0
        self._largest_free_block_bytes = 0
        watch.when_stepped, watch.when_read, watch.when_ran_out = self._sample.stepped, self.read, self.ran_out

    def read(self, reading: Reading) -> None:
        """Record a reading at the end of a step."""
        statistics = self._watch.statistics
        assert statistics is not None  # it was just read
        if self._readings % _LARGEST_BLOCK_EVERY_READINGS == 0:
            self._largest_free_block_bytes = statistics.largest_free_block_bytes()
        self._readings += 1
        self._sample.step_ended(self._peaks.held(reading, time.monotonic()), self._largest_free_block_bytes)
        self._write()
        statistics.reset_peaks()  # the next peaks are those of the next steps; the report keeps the highest

    def ran_out(self, reading: Reading) -> None:
        """Record a failed allocation now, since the script may not reach the end of another step."""
        self._sample.read(self._peaks.held(reading, time.monotonic()))
        self._write()

    def _write(self) -> None:
        with suppress(OSError):  # a full disk may cost the metrics, never the training
            self._sample.write(self._directory)


def publish(watch: Watch, rank: Rank, directory: Path, port: int) -> None:
    """Publish what the watch sees, and serve all ranks of the node if this rank is its first."""
    Publisher(watch, rank, directory)
    if metrics.serves(rank):
        metrics.serve(directory, port)
