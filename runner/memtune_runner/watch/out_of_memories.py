"""The out-of-memories of a script, as they happen: in which phase, who held the memory, and whether the script went on.

`rank/failure_causes.py` recognizes an out-of-memory that ended the script.
"""

from __future__ import annotations

from dataclasses import dataclass

from memtune.wire.report import Phase, ReportedComponent
from memtune_runner.device.statistics import Statistics
from memtune_runner.rank import script_warnings
from memtune_runner.rank.memory_counters import Reading
from memtune_runner.rank.settings import Settings
from memtune_runner.watch.components import largest_components
from memtune_runner.watch.oom_report_files import top_sites, write_companion


@dataclass(frozen=True)
class OutOfMemory:
    """The memory at the moment a request failed, before anything was freed."""

    phase: Phase
    requested_bytes: int
    largest: tuple[ReportedComponent, ...]


class OutOfMemories:
    """The last failed request, and whether the script has recovered from it."""

    def __init__(self, settings: Settings, rank: int) -> None:
        self.last: OutOfMemory | None = None
        self.unrecovered_in: Phase | None = None  # within the training loop, and no step was made since
        self._before_pass: Phase | None = None
        self._settings = settings
        self._rank = rank

    def pass_began(self) -> None:
        """Handle the start of a forward or backward pass."""
        self._before_pass = self.unrecovered_in

    def pass_ended(self) -> None:
        """Handle the end of a pass without an error: code that ran out of memory within it found another way.

        cuDNN, for instance, tries algorithms with smaller workspaces.
        """
        self.unrecovered_in = self._before_pass

    def happened(
        self, phase: Phase, requested_bytes: int, reading: Reading | None, statistics: Statistics, in_loop: bool
    ) -> None:
        """Handle a failed request; the files beside the report contain the first, as a script may retry forever."""
        allocated_bytes = reading.allocated_bytes if reading else 0
        largest = largest_components(allocated_bytes, statistics.device_type)
        path = self._settings.report_path if self.last is None else None
        if in_loop:
            self.unrecovered_in = phase
        self.last = OutOfMemory(phase, requested_bytes, largest)
        if path is not None:
            snapshot = statistics.dump(path.parent / f"memory-rank-{self._rank}.pickle")
            write_companion(path.parent, self._rank, largest, top_sites(snapshot))

    def script_went_on(self) -> None:
        """Handle what shows that the script caught the error: a step, or the next batch of an evaluation."""
        phase = self.unrecovered_in
        if phase is None:
            return
        is_beside = phase in (Phase.EVALUATION, Phase.SAVE)
        if self._settings.is_probe and not is_beside:
            return  # the plan does not fit, even if the script goes on with smaller batches
        self.unrecovered_in = self._before_pass = None
        lost = f"its {phase} is not complete" if is_beside else "the samples of that batch may not have been trained"
        script_warnings.warn(
            f"the script caught an out-of-memory in phase {phase} and went on: {lost}", once=f"caught in {phase}"
        )
