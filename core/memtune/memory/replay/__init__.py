"""Replays a traced model under any plan: its allocations, the allocator's reserved bytes, a step's timeline.

A trace says what one micro-batch allocates, frees and saves. A *script* is that under a checkpointing mode, a *tape* a
whole run of two optimizer steps under a plan, and *playing* a tape feeds it to ``memtune.allocator``.
"""

from __future__ import annotations

from memtune.allocator import AllocatorSettings
from memtune.memory.replay.peaks import PhasePeak, Replayed, Timeline, live_peak, play, timeline
from memtune.memory.replay.recorder import Recorder
from memtune.memory.replay.replay_case import ReplayCase, numerics_of
from memtune.memory.replay.tape import Tape
from memtune.plans.plan import Plan
from memtune.units import MIB
from memtune.wire.trace import Trace

__all__ = ["PhasePeak", "Replayed", "Replayer", "Tape", "Timeline", "live_peak", "numerics_of"]


class Replayer:
    """Replays plans on one trace. It caches what plans share, so use one for many plans."""

    def __init__(
        self,
        trace: Trace,
        nodes: int = 1,
        gpus_per_node: int = 1,
        rank: int | None = None,
        without_reducer: bool = False,
    ) -> None:
        self.trace = trace
        self._ranks = nodes, gpus_per_node, rank, without_reducer
        self._recorder = Recorder()

    def replay(self, plan: Plan, limit_bytes: int | None = None, tape: Tape | None = None) -> Replayed:
        """The peaks of a plan on each rank, optionally under a memory limit. A given tape is not recorded again."""
        split = plan.max_split_size_mib * MIB if plan.max_split_size_mib else None
        return play(tape or self.tape(plan), AllocatorSettings(plan.expandable_segments, split), limit_bytes)

    def timeline(self, plan: Plan) -> Timeline:
        """Allocated bytes by kind at every moment of a step."""
        return timeline(self.tape(plan))

    def tape(self, plan: Plan) -> Tape:
        """Every allocation of two steps, in order."""
        return self._recorder.record(ReplayCase(self.trace, plan, *self._ranks))
