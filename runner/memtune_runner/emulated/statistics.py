"""The counters of an emulated GPU: those of torch's allocator, with a size that a rehearsal may shrink."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace

import torch

from memtune.gpus.gpu import find
from memtune.gpus.operations import Operation, StepTime, step_time
from memtune.units import gib
from memtune_runner.device.statistics import CudaStatistics
from memtune_runner.emulated.memory_history import MOST_EVENTS
from memtune_runner.emulated.phase_peaks import PhasePeaks
from memtune_runner.emulated.process import EmulatedProcess, bytes_others_left, resize
from memtune_runner.emulated.step_operations import COLLECTIVES, StepTrace
from memtune_runner.rank.memory_counters import Reading
from memtune_runner.rank.settings import Settings

# The first one makes what all others find.
_COUNTED_STEP = 2
_NOT_COUNTED = "memtune: the operations of a step could not be counted"


class EmulatedStatistics(CudaStatistics):
    """The ``settings`` have what the GPU has left after a number of steps; 0 is the start."""

    def __init__(self, settings: Settings, peaks: PhasePeaks, keeps_history: bool, process: EmulatedProcess) -> None:
        super().__init__(None)
        self._settings, self._budget_from_step, self._steps = settings, settings.budget_from_step, 0
        # A probe of a single step has none to count, and an update on the host is none of the GPU's.
        has_counted_step = settings.is_probe and (settings.probe_steps or _COUNTED_STEP) >= _COUNTED_STEP
        self._counts = has_counted_step and not settings.plan.offloads_states
        self._trace: StepTrace | None = None
        self._micro_batches = 0
        self._step_time: StepTime | None = None
        self._peaks, self._keeps_history, self._process = peaks, keeps_history, process
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
            made_up_sizes=self._process.made_up_sizes,
        )

    def record_sites(self) -> None:
        if not self._keeps_history:
            super().record_sites()
            return
        record = torch.cuda.memory._record_memory_history
        torch.cuda._lazy_call(lambda: record(stacks="python", max_entries=MOST_EVENTS))

    def forward_began(self, micro_steps: int) -> None:
        # There may be several in a micro-batch.
        if self._trace and micro_steps >= self._micro_batches:
            self._micro_batches = micro_steps + 1
            self._trace.micro_batch_began()

    def step_ended(self, micro_steps: int, is_disturbed: bool) -> None:
        self._steps += 1
        if self._counts:
            self._count_a_step(micro_steps, is_disturbed)
        if left_bytes := self._budget_from_step.get(self._steps):
            print(f"memtune: rehearsal: the emulated GPU has {gib(left_bytes)} from here on", file=sys.stderr)
            # Cached memory would hide the loss.
            torch.cuda.empty_cache()
            resize(left_bytes)

    def _count_a_step(self, micro_steps: int, is_disturbed: bool) -> None:
        trace, self._trace = self._trace, None
        try:
            if trace is None:
                self._trace = StepTrace()
                return
            # No second trace: torch breaks down at the end of a range that began under the first.
            self._counts = False
            if is_disturbed:
                trace.close()
                raise ValueError("the script evaluated or saved within it")
            self._step_time = self._timed(trace.stop(), micro_steps)
        except Exception as error:  # another release of torch may describe a step differently
            self._counts = False
            print(f"{_NOT_COUNTED}: {error!r}", file=sys.stderr, flush=True)

    def _timed(self, parts: list[Counter[Operation]], micro_steps: int) -> StepTime:
        """The time of a step of all the plan's micro-batches, of which a probe makes a few.

        Each of the others takes what the first does, but for collectives that the last does not have as often: those
        are done once in a step.
        """
        all_of_step, others = sum(parts, Counter[Operation]()), self._settings.plan.accumulation - micro_steps
        if others:
            if others < 0 or not 2 < len(parts) == micro_steps + 1:
                raise ValueError(f"{self._settings.plan.accumulation} micro-batches do not follow from {micro_steps}")
            first, last = parts[1], parts[-1]
            for each, times in first.items():
                all_of_step[each] += others * (min(times, last[each]) if each.kind in COLLECTIVES else times)
        return step_time(all_of_step, find(self._settings.gpu_name), self._settings.gpus_per_node)

    def stop_counting(self) -> None:
        """Give up a step that has not ended."""
        if self._trace:
            self._trace.close()
            self._trace = None
            print(f"{_NOT_COUNTED}: it did not end", file=sys.stderr, flush=True)

    @property
    def step_time(self) -> StepTime | None:
        """How long a step takes by its operations; None if they were not counted, or have sizes that were made up."""
        return None if self._process.made_up_sizes else self._step_time

    def counted_seconds(self) -> float | None:
        return self.step_time.seconds if self.step_time else None
