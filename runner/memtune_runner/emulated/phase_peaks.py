"""The allocator's peaks in each phase of a training and on each GPU, invisible to the script's own peak counters."""

from __future__ import annotations

import time
from collections import defaultdict
from types import ModuleType
from typing import Any

from memtune.wire.report import Phase
from memtune_runner.emulated.memory_history import Change
from memtune_runner.emulated.process import used_gpus
from memtune_runner.rank import phases

_METRICS = {"allocated": "allocated_bytes", "active": "active_bytes", "reserved": "reserved_bytes"}


class PhasePeaks:
    """Resets peaks whenever the process enters another phase. Created after the import of torch."""

    def __init__(self, torch: ModuleType) -> None:
        self._cuda, native = torch.cuda, torch._C
        self._read, self._reset = native._cuda_memoryStats, native._cuda_resetPeakMemoryStats
        self._by_phase: dict[Phase, dict[str, int]] = defaultdict(lambda: dict.fromkeys(_METRICS, 0))
        self._by_gpu: dict[int, dict[str, int]] = defaultdict(lambda: dict.fromkeys(_METRICS, 0))
        self._recent = dict.fromkeys(_METRICS, 0)
        self._changes: list[Change] = []
        # The peaks that the script would see if nobody else reset them.
        self._since_reset: dict[int, dict[tuple[str, str], int]] = defaultdict(dict)
        native._cuda_memoryStats, native._cuda_resetPeakMemoryStats = self._shown, self._reset_by_script
        if hasattr(native, "_accelerator_resetPeakStats"):  # torch.accelerator accesses the same peaks in its own way
            native._accelerator_getDeviceStats, native._accelerator_resetPeakStats = self._shown, self._reset_by_script
        phases.when_left(self._changed)

    def by_phase(self) -> dict[str, dict[str, int]]:
        """Return the peaks of every phase so far, in order of their first start."""
        self._left(phases.current())
        return {str(phase): dict(peaks) for phase, peaks in self._by_phase.items()}

    def by_gpu(self) -> dict[int, dict[str, int]]:
        """Return the peaks of every GPU that was used so far."""
        self._left(phases.current())
        return dict(sorted(self._by_gpu.items()))

    def fullest(self) -> int:
        """Return the GPU of which torch has had most so far."""
        return max(self.by_gpu().items(), key=lambda each: each[1]["reserved"], default=(0, {}))[0]

    def since_last_call(self) -> dict[str, int]:
        """Return the peaks since the last call, regardless of the script's resets."""
        self._left(phases.current())
        found, self._recent = self._recent, dict.fromkeys(_METRICS, 0)
        return found

    def changes(self) -> list[Change]:
        """Return when each phase ended, and the current one."""
        return [*self._changes, Change(_now_us(), str(phases.current()))]

    def _changed(self, phase: Phase) -> None:
        self._changes.append(Change(_now_us(), str(phase)))
        self._left(phase)

    def _left(self, phase: Phase) -> None:
        if not self._cuda.is_initialized():
            return
        peaks = self._by_phase[phase]
        for gpu in used_gpus():
            self._left_on(gpu, peaks)

    def _left_on(self, gpu: int, of_phase: dict[str, int]) -> None:
        statistics, since_reset = self._read(gpu), self._since_reset[gpu]
        for metric, name in _METRICS.items():
            peak = statistics[name]["all"]["peak"]
            for peaks in (of_phase, self._by_gpu[gpu], self._recent):
                peaks[metric] = max(peaks[metric], peak)
        for name, pools in statistics.items():
            for pool, counters in pools.items() if isinstance(pools, dict) else ():
                if isinstance(counters, dict):
                    since_reset[name, pool] = max(since_reset.get((name, pool), 0), counters["peak"])
        self._reset(gpu)

    def _shown(self, device: int) -> Any:
        statistics = self._read(device)
        for (name, pool), peak in self._since_reset[device].items():
            counters = statistics[name][pool]
            counters["peak"] = max(counters["peak"], peak)
        return statistics

    def _reset_by_script(self, device: int) -> None:
        self._left(phases.current())
        self._since_reset[device].clear()
        self._reset(device)


def _now_us() -> int:
    """Return the time on the clock of torch's memory history."""
    return time.time_ns() // 1000
