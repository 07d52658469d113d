"""The counters of an emulated GPU: those of torch's allocator, with a size that a rehearsal may shrink."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace

import torch

from memtune.units import gib
from memtune_runner.device.statistics import CudaStatistics
from memtune_runner.emulated.history import MOST_EVENTS
from memtune_runner.emulated.phase_peaks import PhasePeaks
from memtune_runner.emulated.process import Emulation, bytes_others_left, resize
from memtune_runner.rank.memory_reading import Reading


class EmulatedStatistics(CudaStatistics):
    """``budget_from_step`` is what the GPU has left after a number of steps; 0 is the start."""

    def __init__(
        self, budget_from_step: Mapping[int, int], peaks: PhasePeaks, keeps_history: bool, emulation: Emulation
    ) -> None:
        super().__init__(None)
        self._budget_from_step, self._steps = budget_from_step, 0
        self._peaks, self._keeps_history, self._emulation = peaks, keeps_history, emulation
        if left_bytes := budget_from_step.get(0):
            resize(left_bytes)

    def read(self) -> Reading | None:
        self._device = self._peaks.fullest()
        reading = super().read()
        if reading is None:
            return None
        highest = self._peaks.since_last_call()
        assert reading.non_torch_bytes is not None  # a share of an emulated GPU is a smaller one
        return replace(
            reading,
            peak_allocated_bytes=highest["allocated"],
            peak_active_bytes=highest["active"],
            peak_reserved_bytes=highest["reserved"],
            # Processes that the script has started may have ended since the last reading.
            non_torch_bytes=reading.non_torch_bytes + bytes_others_left(self._device),
            made_up_sizes=self._emulation.made_up_sizes,
        )

    def record_sites(self) -> None:
        if not self._keeps_history:
            super().record_sites()
            return
        record = torch.cuda.memory._record_memory_history
        torch.cuda._lazy_call(lambda: record(stacks="python", max_entries=MOST_EVENTS))

    def step_ended(self) -> None:
        self._steps += 1
        if left_bytes := self._budget_from_step.get(self._steps):
            print(f"memtune: rehearsal: the emulated GPU has {gib(left_bytes)} from here on", file=sys.stderr)
            # Cached memory would hide the loss.
            torch.cuda.empty_cache()
            resize(left_bytes)
