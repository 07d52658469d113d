"""A traced model as the predictor asks it: what each part of a plan's run peaks at, by kind of memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import NamedTuple

from memtune.memory.formulas.shape import Shape
from memtune.memory.replay import Replayer
from memtune.memory.replay.setting import numerics_of
from memtune.memory.replay.tape import KINDS, PHASES, Tape
from memtune.plans.plan import Plan
from memtune.wire import trace as events
from memtune.wire.names import short_hash
from memtune.wire.trace import Program, Trace, TraceError
from memtune.wire.trace_message import unpack

_HASH_CHARACTERS = 16
# Kept in fp32, as the largest behind the blocks is where a loss is computed, and joined with those of batches before.
_KEPT_LOGITS = 2
# What a trace that is sound by itself may still lack: the end of a block, the tensor that a save holds.
_BROKEN = (LookupError, ArithmeticError, TypeError, AssertionError)


class Footprint(NamedTuple):
    """What a plan's run peaks at: bytes by kind in each part of it, and reserved over allocated bytes of the whole."""

    peaks: Mapping[str, Mapping[str, int]]
    packing: float


@dataclass(frozen=True)
class TracedModel:
    """A model that nobody described. Two are the same if their traces are."""

    digest: str
    trace: Trace = field(compare=False, repr=False)

    @property
    def name(self) -> str:
        """What the model is called."""
        return self.trace.model

    @cached_property
    def _replayers(self) -> dict[tuple[int, int, bool], Replayer]:
        return {}

    @cached_property
    def _footprints(self) -> dict[tuple[int, int, bool, Plan], Footprint]:
        return {}

    def footprint(self, plan: Plan, nodes: int, gpus_per_node: int, without_reducer: bool = False) -> Footprint:
        """Replay a plan; one that was replayed before is remembered."""
        key = nodes, gpus_per_node, without_reducer, plan
        if key not in self._footprints:
            self._footprints[key] = self._replayed(plan, (nodes, gpus_per_node, without_reducer))
        return self._footprints[key]

    def evaluation_bytes(self, plan: Plan, rows: int, keeps_logits: bool) -> int:
        """The most that an evaluation batch of so many rows has at once, besides what stays between steps."""
        program = self.trace.program(numerics_of(plan))
        kept = _KEPT_LOGITS * rows * _logits(program) if keeps_logits else 0
        return forward_bytes(program, rows) + kept

    def _replayed(self, plan: Plan, ranks: tuple[int, int, bool]) -> Footprint:
        try:
            if ranks not in self._replayers:
                nodes, gpus_per_node, without_reducer = ranks
                self._replayers[ranks] = Replayer(self.trace, nodes, gpus_per_node, without_reducer=without_reducer)
            replayer = self._replayers[ranks]
            tape = replayer.tape(plan)
            peak = replayer.replay(plan, tape=tape).peak
            return Footprint(_peaks(tape), peak.reserved / max(peak.allocated, 1))
        except _BROKEN as error:
            raise TraceError(
                f"the trace of {self.trace.model} cannot be replayed ({type(error).__name__}); delete the "
                "ConfigMap memtune-traces, or call memtune run again, and the factory is traced again"
            ) from None

    @cached_property
    def shape(self) -> Shape:
        """What a step takes, for the speed: counted where the trace knows it, else as of a usual block."""
        parameters, layers = self.trace.parameters, max(self.trace.blocks, 1)
        in_blocks = [0] * layers
        for each in parameters:
            if 0 <= each.block < layers:
                in_blocks[each.block] += each.elements
        total, learning = self.trace.total, sum(each.elements for each in parameters if each.learns)
        hidden, query = self._widths()
        return Shape(
            hidden=hidden, layers=layers, heads=1, query=query, key_value=query, ffn=4 * hidden, expert_copies=0,
            gated=False, norms=2, rms_norm=False, vocab=0, hidden_dropout=0.0, attention_dropout=0.0,
            root=total - sum(in_blocks), layer=max(in_blocks), total=total, active=total,
            trainable=learning, quantizable=0, quantization="none", has_adapter=learning < total, adapted=frozenset(),
        )  # fmt: skip

    def _widths(self) -> tuple[int, int]:
        """The elements of a token between the blocks, and in attention."""
        name, program = next(iter(self.trace.programs.items()))
        token_bytes = max(self.trace.sequence_length, 1) * (4 if name == "full" else 2)
        between = [program.per_row[each] for group in program.inputs for each in group[-1:]]
        attended = [size for size, by in zip(program.per_row, program.made_by, strict=True) if by == events.ATTENTION]
        return max(between, default=0) // token_bytes, max(attended, default=0) // token_bytes


def forward_bytes(program: Program, rows: int) -> int:
    """The most bytes at once in a forward pass of which autograd keeps nothing."""
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
    """The bytes of a row in the largest tensor behind the last block, as a head makes it; 0 where there is no block."""
    last = program.codes.rfind(events.LEAVE)
    before = program.codes.count(events.ALLOC, 0, last + 1)
    within = program.codes.count(events.ALLOC, 0, program.codes.index(events.BACKWARD))
    return max(program.per_row[before:within], default=0) if last >= 0 else 0


@lru_cache(maxsize=32)
def read_traced(message: str) -> TracedModel:
    """The model of a message; equal messages are one model, so that what was replayed is not replayed again."""
    return TracedModel(short_hash(message, _HASH_CHARACTERS), unpack(message))


def _peaks(tape: Tape) -> dict[str, dict[str, int]]:
    """The bytes by kind at the moment of each part of the run at which most is there."""
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
