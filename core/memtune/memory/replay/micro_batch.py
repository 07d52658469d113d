"""Writes the script of one micro-batch under a checkpointing mode: which tensors live when, without sizes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from memtune.memory.replay.segments import Segment, backward_bounds, segments_of, visits_of
from memtune.plans.knobs import Checkpointing
from memtune.wire import trace as events
from memtune.wire.trace import Program, Trace, TraceError

# Script opcodes, each with one number: a life, a gradient, a block or the root, a weight.
ALLOC, FREE, GRADIENT, ENTER, LEAVE, BACK, DONE, BACKWARD, FIRST, NEED, AGAIN, SPARE, MODULE = range(13)

_OF_THE_ROOT = {events.CALL: ENTER, events.RETURN: LEAVE, events.REACHED: BACK}
_PLAIN = {
    events.ENTER: ENTER, events.LEAVE: LEAVE, events.FIRST: FIRST, events.BACKWARD: BACKWARD,
    events.NEED: NEED, events.SPARE: SPARE, events.MODULE: MODULE,
}  # fmt: skip
_RECOMPUTED = {events.NEED: AGAIN, events.SPARE: SPARE, events.MODULE: MODULE}

ACTIVATIONS, TEMPORARIES = "activations", "temporaries"


@dataclass
class Script:
    """The steps of one micro-batch. A life is one allocation of a tensor: a recomputed tensor has two."""

    steps: list[tuple[int, int]] = field(default_factory=list)
    tensors: list[int] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    gradients: list[tuple[int, int]] = field(default_factory=list)  # a parameter, and the life that is its gradient


def write(trace: Trace, program: Program, checkpointing: Checkpointing, offloaded: frozenset[int]) -> Script:
    """The script of a micro-batch. ``offloaded`` tensors move to host memory while autograd holds them."""
    if checkpointing.mode != "none" and not trace.blocks:
        raise TraceError(
            f"checkpointing {checkpointing} works on the repeated blocks of a model, and {trace.model} has none; "
            "use a plan with checkpointing none"
        )
    return _Writer(trace, program, checkpointing, offloaded).write()


class _Writer:
    """Walks through the events and counts the holders of each life."""

    def __init__(self, trace: Trace, program: Program, checkpointing: Checkpointing, offloaded: frozenset[int]) -> None:
        visits = visits_of(program)
        self._program = program
        self._offloaded = offloaded
        self._script = Script()
        self._starts = {segment.first: segment for segment in segments_of(trace, program, visits, checkpointing)}
        self._segment_of: dict[int, Segment] = {}  # by save
        self._now: dict[int, int] = {}  # the life of each tensor
        self._holders: list[int] = []  # by life
        self._saved: dict[int, int] = {}  # the life that a save holds
        self._tensor_of: list[int] = []  # by save
        self._released: set[int] = set()  # saves
        self._kept: dict[int, int] = {}  # by tensor: the life that waits for the model's own recomputation
        self._kept_in: dict[int, list[int]] = {}  # by block: those tensors
        self._again: dict[int, int] = {}  # what recomputation makes again, and the kept tensor
        self._owned: set[int] = set()  # tensors that became gradients
        self._begins, self._ends = backward_bounds(trace, program, visits)

    def write(self) -> Script:
        segment: Segment | None = None
        for position, (code, number) in enumerate(zip(self._program.codes, self._program.numbers, strict=True)):
            if position in self._starts:
                segment = self._starts[position]
                segment.held = [self._hold(self._now[each]) for each in segment.inputs if each not in self._offloaded]
            for block in self._begins.get(position, ()):
                self._step(BACK, block)
            self._event(code, number, segment)
            if segment is not None and position == segment.last:
                self._leave(segment)
                segment = None
            for block in self._ends.get(position, ()):
                self._step(DONE, block)
                for tensor in self._kept_in.pop(block, ()):
                    if tensor in self._kept:  # the recomputation stopped before it
                        self._release(self._kept.pop(tensor))
        self._end()
        return self._script

    def _event(self, code: str, number: int, segment: Segment | None) -> None:
        if code == events.ALLOC:
            self._alloc(segment)
        elif code == events.DROP:
            if number not in self._owned:
                self._release(self._now[number])
        elif code == events.SAVE:
            self._save(number, segment)
        elif code == events.UNPACK:
            self._unpack(number)
        elif code == events.RELEASE:
            self._release_save(number)
        elif code == events.GRADIENT:
            self._gradient(number)
        elif code in _OF_THE_ROOT:
            self._step(_OF_THE_ROOT[code], events.ROOT)
        else:
            self._step(_PLAIN[code], number)

    def _alloc(self, segment: Segment | None) -> None:
        tensor = len(self._now)
        kept = self._kept.pop(self._again.get(tensor, -1), -1)
        life = self._now[tensor] = self._live(tensor) if kept < 0 else kept
        if segment is not None and tensor in segment.kept:
            self._hold(life)
            segment.unclaimed.append(life)

    def _save(self, tensor: int, segment: Segment | None) -> None:
        save = len(self._tensor_of)
        self._tensor_of.append(tensor)
        if segment is not None:
            # The recomputation saves it again; inputs from outside are kept by the closure that recomputes.
            segment.saves.append(save)
            self._segment_of[save] = segment
            if tensor < segment.tensors and tensor not in segment.inputs:
                segment.inputs.append(tensor)
                if tensor not in self._offloaded:
                    segment.held.append(self._hold(self._now[tensor]))
        elif tensor not in self._offloaded:
            self._saved[save] = self._hold(self._now[tensor])

    def _leave(self, segment: Segment) -> None:
        """The segment has run and keeps only its inputs; not even these if it saves nothing."""
        segment.waiting = sum(save not in self._released for save in segment.saves)
        if not segment.waiting:
            if segment.again is not None:
                self._again.update(segment.again)
                kept = {self._script.tensors[life]: life for life in segment.unclaimed}
                self._kept_in[self._program.numbers[segment.first]] = list(kept)
                self._kept.update(kept)
                segment.unclaimed = []
            self._let_go(segment)

    def _let_go(self, segment: Segment) -> None:
        for life in [*segment.held, *segment.unclaimed]:
            self._release(life)

    def _unpack(self, save: int) -> None:
        segment = self._segment_of.get(save)
        if segment is not None and not segment.is_recomputed:
            self._recompute(segment)
        if save not in self._saved:
            tensor = self._tensor_of[save]
            self._saved[save] = self._live(tensor, ACTIVATIONS)

    def _release_save(self, save: int) -> None:
        self._released.add(save)
        if save in self._saved:
            self._release(self._saved.pop(save))
        segment = self._segment_of.get(save)
        if segment is not None:
            segment.waiting -= 1
            if not segment.waiting:
                self._let_go(segment)

    def _recompute(self, segment: Segment) -> None:
        """Run the segment again up to its last save, where torch stops early, then free its locals."""
        segment.is_recomputed = True
        local: dict[int, int] = {}
        fetched = {each: self._live(each, ACTIVATIONS) for each in segment.inputs if each in self._offloaded}
        unclaimed = {self._script.tensors[life]: life for life in segment.unclaimed}
        passing: dict[int, int] = {}  # by save: what a discarded graph frees, as behind a detached result
        saves = iter(segment.saves)
        left = len(segment.saves)
        for code, number in self._events_of(segment):
            if code == events.ALLOC:
                # A kept result is reused instead of recomputed.
                local[number] = unclaimed.pop(number) if number in unclaimed else self._live(number)
            elif code == events.DROP and number in local:
                self._release(local.pop(number))
            elif code in _RECOMPUTED:
                self._step(_RECOMPUTED[code], number)
            elif code == events.SAVE:
                life = local.get(number, fetched.get(number, self._now[number]))
                save = next(saves)
                (passing if save in self._released else self._saved)[save] = self._hold(life)
                left -= 1
                if not left:
                    break
            elif code == events.RELEASE and number in passing:
                self._release(passing.pop(number))
        segment.unclaimed = list(unclaimed.values())
        for life in [*local.values(), *passing.values(), *fetched.values()]:
            self._release(life)

    def _events_of(self, segment: Segment) -> Iterator[tuple[str, int]]:
        """The events of a segment; an allocation with the number of its tensor."""
        tensor = segment.tensors
        for position in range(segment.first, segment.last):
            code = self._program.codes[position]
            if code == events.ALLOC:
                yield code, tensor
                tensor += 1
            else:
                yield code, self._program.numbers[position]

    def _gradient(self, tensor: int) -> None:
        """From here on it belongs to the optimizer: the plan decides how long it lives."""
        parameter = self._program.gradients[len(self._script.gradients)]
        life = -1 if tensor in self._owned else self._now[tensor]
        self._owned.add(tensor)
        self._step(GRADIENT, len(self._script.gradients))
        self._script.gradients.append((parameter, life))

    def _end(self) -> None:
        """The next micro-batch replaces what the model itself keeps from one to the next."""
        for tensor, life in self._now.items():
            if tensor not in self._owned:
                while self._holders[life]:
                    self._release(life)

    def _live(self, tensor: int, kind: str = TEMPORARIES) -> int:
        life = len(self._holders)
        self._holders.append(1)
        self._script.tensors.append(tensor)
        self._script.kinds.append(kind)
        self._step(ALLOC, life)
        return life

    def _hold(self, life: int) -> int:
        self._holders[life] += 1
        self._script.kinds[life] = ACTIVATIONS
        return life

    def _release(self, life: int) -> None:
        self._holders[life] -= 1
        if not self._holders[life]:
            self._step(FREE, life)

    def _step(self, action: int, number: int) -> None:
        self._script.steps.append((action, number))
