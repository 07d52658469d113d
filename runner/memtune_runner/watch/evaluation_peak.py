"""Whether a probe takes the most in an evaluation: no plan changes that, so that the script has to."""

from __future__ import annotations

from collections.abc import Callable

from memtune.wire.report import Memory
from memtune_runner.rank.settings import Settings
from memtune_runner.watch.tally import Tally


class EvaluationPeak:
    """Compares the peak before each evaluated batch of a probe with that behind it."""

    def __init__(self, settings: Settings, read: Callable[[], object], memory: Callable[[], Memory]) -> None:
        self._settings, self._read, self._memory = settings, read, memory
        self._before = self._peak_bytes = 0
        self._batch: int | None = None

    def forward_begins(self) -> None:
        """The model is given a batch to evaluate."""
        self._before = self._measured()

    def forward_ended(self, tally: Tally) -> None:
        """It has given its output, which it still holds."""
        now = self._measured()
        if now > self._before:
            self._peak_bytes, self._batch = now, tally.evaluation_batch

    @property
    def warning(self) -> str:
        """What to say of a peak that larger batches than those of the training have made; empty where none did."""
        micro_batch = self._settings.plan.micro_batch
        is_largest = self._peak_bytes == self._memory().peak_device_bytes
        if not is_largest or self._batch is None or self._batch <= micro_batch:
            return ""
        return (
            f"the peak is that of an evaluation in batches of {self._batch}, where the plan trains in batches of "
            f"{micro_batch}: let the script evaluate in smaller ones, or keep no outputs on the GPU"
        )

    def _measured(self) -> int:
        if not self._settings.is_probe:
            return 0
        self._read()
        return self._memory().peak_device_bytes
