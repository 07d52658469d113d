"""Detects that a probe peaks in its evaluation: no plan can change that, so the script must."""

from __future__ import annotations

from collections.abc import Callable

from memtune.wire.report import Memory
from memtune_runner.rank.settings import Settings
from memtune_runner.watch.batch_counts import BatchCounts


class EvaluationPeak:
    """Compares a probe's peak before and after each evaluation batch."""

    def __init__(self, settings: Settings, read: Callable[[], object], memory: Callable[[], Memory]) -> None:
        self._settings, self._read, self._memory = settings, read, memory
        self._before = self._peak_bytes = 0
        self._batch: int | None = None

    def forward_begins(self) -> None:
        """Read the peak before an evaluation batch."""
        self._before = self._measured()

    def forward_ended(self, batch_counts: BatchCounts) -> None:
        """Read the peak while the model's output is still alive."""
        now = self._measured()
        if now > self._before:
            self._peak_bytes, self._batch = now, batch_counts.evaluation_batch

    @property
    def warning(self) -> str:
        """Return the warning if evaluation batches larger than the training's made the peak; else empty."""
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
