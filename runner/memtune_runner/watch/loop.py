"""Tells whether a script has left its training loop: from where its functions stand, and where they can still go.

A script that merges its weights or uploads its model has left its loop, and hangs no more than one that evaluates; so
has one that trains in another loop next. Below a loop around all of it (one that tries again, a dispatcher, an event
loop, C that calls a function again and again) nobody can tell: mostly the training loop is taken to go on.
"""

from __future__ import annotations

import dis
import sys
import threading
from bisect import bisect_right
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, FrameType

# What follows these is reached from elsewhere. An unknown one of a newer Python is taken to go on, which errs towards
# a loop that is not left.
_GOES_NOT_ON = frozenset(
    {"JUMP_FORWARD", "JUMP_ABSOLUTE", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"}
    | {"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"}
)
_JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))


# A function, and the instruction at which it stands. No class of its own: they are made at every step.
Place = tuple[CodeType, int]


class TrainingLoop:
    """Where the script was when the optimizer last stepped. Other threads may ask."""

    def __init__(self) -> None:
        self._stepped_at: Sequence[Place] = ()

    def stepped(self) -> None:
        """The optimizer has stepped. Of another thread than the main one nobody knows who calls it next."""
        is_main = threading.current_thread() is threading.main_thread()
        self._stepped_at = places(sys._getframe(1)) if is_main else ()

    def is_left(self) -> bool:
        """Whether no function that led to the last step can come back to where it did."""
        stepped_at = self._stepped_at
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        return bool(stepped_at) and frame is not None and not may_repeat(stepped_at, places(frame))


def places(frame: FrameType | None) -> list[Place]:
    """Where a thread stands, innermost first."""
    found = []
    while frame is not None:
        found.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return found


def may_repeat(before: Sequence[Place], now: Sequence[Place]) -> bool:
    """Whether a thread that stands there now may come to where it stood before, by the calls that it came by."""
    if _recurs(before, now):
        return True
    for (then_code, then), (code, here) in zip(reversed(before), reversed(now), strict=False):
        # Beside each other in the same call: whatever is called there, C among it, may call the other one again.
        if then_code is not code:
            return True
        flow = _Flow.of(code)
        if flow is None or flow.leads(here, then):
            return True
        if not flow.is_same(here, then):
            return False
    return True


def _recurs(before: Sequence[Place], now: Sequence[Place]) -> bool:
    """Whether a function that calls itself may come to where any of its calls stood."""
    for code in {code for code, _ in before}:
        thens, heres = ({place for each, place in places if each is code} for places in (before, now))
        if max(_count(before, code), _count(now, code)) < 2:
            continue
        flow = _Flow.of(code)
        if flow is None or any(flow.leads(here, then) for here in heres for then in thens):
            return True
    return False


def _count(places: Sequence[Place], code: CodeType) -> int:
    return sum(each is code for each, _ in places)


@dataclass(frozen=True)
class _Flow:
    """The ways within a function: for each instruction those that may come next, and what it was compiled from.

    Python compiles some source twice, such as the condition of a ``while``: both copies are one instruction.
    """

    ways: Mapping[int, set[int]]
    sources: Mapping[int, Hashable]

    @classmethod
    def of(cls, code: CodeType) -> _Flow | None:
        """Those of a function; None where this Python does not tell."""
        instructions = list(dis.get_instructions(code))
        protected = _protected(code, instructions)
        return None if protected is None else cls(_ways(instructions, protected), _sources(instructions))

    def leads(self, here: int, target: int) -> bool:
        """Whether the function can go from here to the target, be it once more."""
        waiting, seen = [self._start(here)], set[int]()
        while waiting:
            for following in self.ways[waiting.pop()] - seen:
                seen.add(following)
                waiting.append(following)
        source = self.sources[self._start(target)]
        return any(self.sources[each] == source for each in seen)

    def is_same(self, one: int, other: int) -> bool:
        """Whether both offsets are in the same instruction."""
        return self.sources[self._start(one)] == self.sources[self._start(other)]

    def _start(self, offset: int) -> int:
        """Where the instruction begins that an offset is in: where it calls, a function stands at the end of one."""
        starts = list(self.ways)
        return starts[bisect_right(starts, offset) - 1]


def _ways(instructions: list[dis.Instruction], protected: list[tuple[int, int, int]]) -> dict[int, set[int]]:
    found = {}
    for each, following in zip(instructions, [*instructions[1:], None], strict=True):
        ways = {handler for start, end, handler in protected if start <= each.offset < end}
        if each.opcode in _JUMPS:
            ways.add(each.argval)
        if following is not None and each.opname not in _GOES_NOT_ON:
            ways.add(following.offset)
        found[each.offset] = ways
    return found


def _sources(instructions: list[dis.Instruction]) -> dict[int, Hashable]:
    """What each instruction does for which piece of the source; one that is for none is only itself."""
    found: dict[int, Hashable] = {}
    line: int | None = None
    for each in instructions:
        line = each.starts_line or line
        piece = getattr(each, "positions", (line,))  # of Python 3.10 no more than the line
        found[each.offset] = each.offset if piece[0] is None else (each.opcode, each.arg, *piece)
    return found


def _protected(code: CodeType, instructions: list[dis.Instruction]) -> list[tuple[int, int, int]] | None:
    """From where to where an exception leads to which handler; None where this Python does not tell."""
    if not hasattr(code, "co_exceptiontable"):  # Python 3.10 sets a block up in front of what it protects
        setups = (each for each in instructions if each.opname.startswith("SETUP_"))
        return [(each.offset, each.argval, each.argval) for each in setups]
    entries = getattr(dis.Bytecode(code), "exception_entries", None)
    return None if entries is None else [(each.start, each.end, each.target) for each in entries]
