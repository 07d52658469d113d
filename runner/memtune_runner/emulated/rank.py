"""One rank of a job on the emulated GPU, from the import of torch to the words about it in the log."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from memtune.units import counted
from memtune_runner.emulated.process import Emulation
from memtune_runner.settings import Settings

if TYPE_CHECKING:
    from memtune_runner.emulated.statistics import EmulatedStatistics  # needs torch, which is not imported yet

_READS_TOLD = 3


class EmulatedRank:
    """Does nothing until it is attached, which a rank on another device never is."""

    def __init__(self, ranks: int) -> None:
        self._emulation, self._is_attached = Emulation(ranks), False

    def attach(self, torch: ModuleType, settings: Settings) -> EmulatedStatistics:
        """Make torch, which has just been imported, ready for the emulated GPU; its counters."""
        from memtune_runner.emulated.phase_peaks import PhasePeaks
        from memtune_runner.emulated.statistics import EmulatedStatistics

        statistics = EmulatedStatistics(settings.budget_from_step, PhasePeaks(torch))
        self._emulation.torch_imported(torch)
        self._is_attached = True
        return statistics

    def detach(self) -> None:
        """Stop following values."""
        self._emulation.active.close()

    def tell(self) -> None:
        """Say in the log what an emulated run is worth."""
        if not self._is_attached:
            return
        for line in _words(self._emulation.measured()):
            print(f"memtune: emulated GPU: {line}", file=sys.stderr, flush=True)


def _words(measured: Mapping[str, Any]) -> Iterator[str]:
    yield "memory was counted, no kernel ran, and what was saved is no trained model"
    made_up = [each for each in measured["values"] if each["value"] != "true"]
    if made_up:
        times = counted(sum(each["times"] for each in made_up), "value")
        places = ", ".join(f"{each['file']}:{each['line']}" for each in made_up[:_READS_TOLD])
        more = ", ..." if len(made_up) > _READS_TOLD else ""
        yield f"the script read {times} that no kernel has computed ({places}{more}); memory may depend on them"
    if measured["compilations"]:
        yield "what torch.compile was to compile ran as it is written, which may take other memory"
    if measured["stubs"]:
        names = ", ".join(each["name"] for each in measured["stubs"])
        yield f"functions that only pretended to succeed were called: {names}"
