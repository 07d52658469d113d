"""The counters of an emulated GPU: those of torch's allocator, with a size that a rehearsal may shrink."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace

import torch

from memtune.gpus.gpu import find
from memtune.gpus.operations import StepTime, step_time
from memtune.units import gib
from memtune_runner.device.statistics import CudaStatistics
from memtune_runner.emulated.history import MOST_EVENTS
from memtune_runner.emulated.phase_peaks import PhasePeaks
from memtune_runner.emulated.process import Emulation, bytes_others_left, resize
from memtune_runner.emulated.step_operations import StepOperations, StepTrace
from memtune_runner.rank.memory_reading import Reading
from memtune_runner.rank.settings import Settings

# The first one makes what all others find.
_COUNTED_STEP = 2


class EmulatedStatistics(CudaStatistics):
    """The ``settings`` have what the GPU has left after a number of steps; 0 is the start."""

    def __init__(self, settings: Settings, peaks: PhasePeaks, keeps_history: bool, emulation: Emulation) -> None:
        super().__init__(None)
        self._settings, self._budget_from_step, self._steps = settings, settings.budget_from_step, 0
        self._trace: StepTrace | None = None
        self.step_time: StepTime | None = None
        self._peaks, self._keeps_history, self._emulation = peaks, keeps_history, emulation
        if left_bytes := self._budget_from_step.get(0):
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

    def step_ended(self, micro_steps: int) -> None:
        self._steps += 1
        if self._settings.is_probe:
            self._count_a_step(micro_steps)
        if left_bytes := self._budget_from_step.get(self._steps):
            print(f"memtune: rehearsal: the emulated GPU has {gib(left_bytes)} from here on", file=sys.stderr)
            # Cached memory would hide the loss.
            torch.cuda.empty_cache()
            resize(left_bytes)

    def _count_a_step(self, micro_steps: int) -> None:
        try:
            if self._steps == _COUNTED_STEP - 1:
                self._trace = StepTrace()
            elif self._steps == _COUNTED_STEP and self._trace:
                self.step_time = self._timed(self._trace.stop(), micro_steps)
        except Exception as error:  # another release of torch may describe a step differently
            print(f"memtune: the operations of a step could not be counted: {error!r}", file=sys.stderr, flush=True)

    def _timed(self, counted: StepOperations, micro_steps: int) -> StepTime:
        """The time of a step of all the plan's micro-batches, of which a probe makes a few."""
        share = self._settings.plan.accumulation / max(micro_steps, 1)
        all_of_step = Counter({operation: times * share for operation, times in counted.micro.items()})
        all_of_step.update(counted.update)
        return step_time(all_of_step, find(self._settings.gpu_name), self._settings.gpus_per_node)

    def counted_seconds(self) -> float | None:
        return self.step_time.seconds if self.step_time else None
