"""One rank of a job on the emulated GPU, from the import of torch to its summary in the log."""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from memtune.units import gib
from memtune.wire import environment
from memtune_runner.emulated import memory_history
from memtune_runner.emulated.memory_history import Change
from memtune_runner.emulated.phase_peaks import PhasePeaks
from memtune_runner.emulated.process import EmulatedProcess, enter_children, notes, other_processes
from memtune_runner.rank.settings import Settings

if TYPE_CHECKING:
    from memtune_runner.emulated.statistics import EmulatedStatistics  # needs torch, which is not imported yet


class EmulatedRank:
    """Does nothing until attached; a rank on another device never is."""

    def __init__(self, ranks: int) -> None:
        self._process = EmulatedProcess.inherited or EmulatedProcess(ranks)
        self._torch: ModuleType | None = None
        self._peaks: PhasePeaks | None = None
        self._statistics: EmulatedStatistics | None = None

    def attach(self, torch: ModuleType, settings: Settings) -> EmulatedStatistics:
        """Prepare torch, just imported, for the emulated GPU, and return its counters."""
        from memtune_runner.emulated.statistics import EmulatedStatistics

        self._torch, self._peaks = torch, PhasePeaks(torch)
        keeps_history = environment.EMULATED_RESULT in os.environ
        statistics = EmulatedStatistics(settings, self._peaks, keeps_history, self._process)
        self._statistics = statistics
        if self._process is not EmulatedProcess.inherited:
            self._process.torch_imported(torch)
        enter_children()
        return statistics

    def detach(self) -> None:
        """Stop following values, and counting operations."""
        if self._statistics:
            self._statistics.stop_counting()
        self._process.active.close()

    def tell(self) -> None:
        """Log how far an emulated run can be trusted."""
        if self._torch is None or self._peaks is None:
            return
        measured = {**self._process.measured(), "otherProcesses": other_processes()}
        if path := os.environ.get(environment.EMULATED_RESULT):
            phase_bytes, changes = self._peaks.by_phase(), self._peaks.changes()
            step = self._statistics.step_time if self._statistics else None
            result = {
                **measured, "phaseBytes": phase_bytes, "peakBytesByGpu": self._peaks.by_gpu(),
                "residentPeakBytes": self._process.resident_peak_bytes,
                "stepSeconds": {**step._asdict(), "all": step.seconds} if step else None,
                **self._history(changes), "torch": self._torch.__version__,
            }  # fmt: skip
            Path(path).write_text(json.dumps(result), encoding="utf-8")
            return  # the caller reports it
        for line in _words(measured):
            print(f"memtune: emulated GPU: {line}", file=sys.stderr, flush=True)

    def _history(self, changes: Sequence[Change]) -> dict[str, Any]:
        assert self._torch is not None
        assert self._peaks is not None
        cuda = self._torch.cuda
        if not cuda.is_initialized():
            return {"history": None}
        if snapshot := os.environ.get(environment.EMULATED_SNAPSHOT):
            cuda.memory._dump_snapshot(snapshot)
        gc.disable()  # the script has ended, and the history is millions of objects without a cycle
        events = cuda.memory._snapshot()["device_traces"][self._peaks.fullest()]
        return {"history": memory_history.peak_history(events, changes)}


def _words(measured: Mapping[str, Any]) -> Iterator[str]:
    yield "memory was counted, no kernel ran, and what was saved is no trained model"
    for each in measured["otherProcesses"]:
        taken = f"up to {gib(each['peakBytes'])} of GPU {each['gpu']}"
        yield f"processes that the script started took {taken}: what this one met there is in the device's peak alone"
    yield from notes(measured)
