"""`Replays`: cached replays of a traced model, with the peaks of each part of a run by kind of memory."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from memtune.memory.replay import Replayer
from memtune.memory.replay.replay_case import numerics_of
from memtune.memory.replay.tape import KINDS, PHASES, Tape
from memtune.memory.traced_model import TracedModel
from memtune.plans.plan import Plan
from memtune.wire import trace as events
from memtune.wire.trace import Program, TraceError

# Kept in fp32, as the largest tensor behind the blocks is at the loss, and joined with earlier batches'.
_KEPT_LOGITS = 2
# A well-formed trace may still lack the end of a block or the tensor of a save.
_BROKEN = (LookupError, ArithmeticError, TypeError, AssertionError)


class Footprint(NamedTuple):
    """The peaks of a plan's run: bytes by kind in each part, and the ratio of reserved to allocated bytes."""

    peaks: Mapping[str, Mapping[str, int]]
    packing: float


class Replays:
    """The replays of one traced model; each plan is replayed once."""

    def __init__(self, model: TracedModel) -> None:
        self._trace = model.trace
        self._replayers: dict[tuple[int, int, bool], Replayer] = {}
        self._footprints: dict[tuple[int, int, bool, Plan], Footprint] = {}

    def footprint(self, plan: Plan, nodes: int, gpus_per_node: int, without_reducer: bool = False) -> Footprint:
        """The peaks of a plan's run."""
        key = nodes, gpus_per_node, without_reducer, plan
        if key not in self._footprints:
            self._footprints[key] = self._replayed(plan, (nodes, gpus_per_node, without_reducer))
        return self._footprints[key]

    def _replayed(self, plan: Plan, ranks: tuple[int, int, bool]) -> Footprint:
        try:
            if ranks not in self._replayers:
                nodes, gpus_per_node, without_reducer = ranks
                self._replayers[ranks] = Replayer(self._trace, nodes, gpus_per_node, without_reducer=without_reducer)
            replayer = self._replayers[ranks]
            tape = replayer.tape(plan)
            peak = replayer.replay(plan, tape=tape).peak
            return Footprint(_peaks(tape), peak.reserved / max(peak.allocated, 1))
        except _BROKEN as error:
            raise TraceError(
                f"the trace of {self._trace.model} cannot be replayed ({type(error).__name__}); delete the "
                "ConfigMap memtune-traces, or call memtune run again, and the factory is traced again"
            ) from None


@lru_cache(maxsize=32)
def replays_of(model: TracedModel) -> Replays:
    """The replays of a model, cached for the newest models, so that a new predictor replays nothing again."""
    return Replays(model)


def evaluation_bytes(model: TracedModel, plan: Plan, rows: int, keeps_logits: bool) -> int:
    """The peak of an evaluation batch, without what stays between steps."""
    program = model.trace.program(numerics_of(plan))
    kept = _KEPT_LOGITS * rows * _logits(program) if keeps_logits else 0
    return forward_bytes(program, rows) + kept


def forward_bytes(program: Program, rows: int) -> int:
    """The peak of a forward pass without autograd."""
    sizes, made, live, peak = program.sizes(rows), 0, 0, 0
    for code, number in zip(program.codes, program.numbers, strict=True):
        if code == events.BACKWARD:
            break
        if code == events.ALLOC:
            live += sizes[made]
            made += 1
            peak = max(peak, live)
        elif code == events.DROP:
            live -= sizes[number]
    return peak


def _logits(program: Program) -> int:
    """Bytes per row of the largest tensor after the last block, from the head; 0 without a block."""
    last = program.codes.rfind(events.LEAVE)
    before = program.codes.count(events.ALLOC, 0, last + 1)
    within = program.codes.count(events.ALLOC, 0, program.codes.index(events.BACKWARD))
    return max(program.per_row[before:within], default=0) if last >= 0 else 0


def _peaks(tape: Tape) -> dict[str, dict[str, int]]:
    """The bytes by kind at the peak of each part of the run."""
    now, highest = [0] * len(KINDS), {name: (0, [0] * len(KINDS)) for name in PHASES}
    ends = [mark[0] for mark in tape.marks[1:]] + [len(tape.events)]
    total = 0
    for (start, phase), end in zip(tape.marks, ends, strict=True):
        most, seen = highest[PHASES[phase]]
        for event in tape.events[start:end]:
            tensor = event if event >= 0 else ~event
            size = tape.sizes[tensor] if event >= 0 else -tape.sizes[tensor]
            now[tape.kinds[tensor]] += size
            total += size
            if total > most:
                most, seen = total, list(now)
        highest[PHASES[phase]] = most, seen
    return {name: dict(zip(KINDS, seen, strict=True)) for name, (_, seen) in highest.items()}
