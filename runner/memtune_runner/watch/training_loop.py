"""Tells whether a script has left its training loop, from its call stack and the control flow of its functions.

A script that merges weights, uploads its model or trains in another loop has left the loop and does not hang. An outer
loop around everything (retries, a dispatcher, an event loop, C code that calls a function repeatedly) makes the answer
unknowable: then the training loop mostly counts as not left.
"""

from __future__ import annotations

import dis
import sys
import threading
from bisect import bisect_right
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import dropwhile
from types import CodeType, FrameType

# After these instructions control does not fall through. An unknown instruction of a newer Python counts as falling
# through, which errs towards a loop that is not left.
_GOES_NOT_ON = frozenset(
    {"JUMP_FORWARD", "JUMP_ABSOLUTE", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"}
    | {"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"}
)
_JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))


# A function and an instruction offset. A plain tuple, because many are created in every step.
Place = tuple[CodeType, int]


class TrainingLoop:
    """The call stack at the last optimizer step. Safe to read from other threads."""

    def __init__(self) -> None:
        self._stepped_at: Sequence[Place] = ()

    def stepped(self) -> None:
        """Record the call stack of a step. In other threads than the main one the callers are unknown."""
        is_main = threading.current_thread() is threading.main_thread()
        self._stepped_at = places(sys._getframe(1)) if is_main else ()

    def is_left(self) -> bool:
        """Whether no function that led to the last step can get back there."""
        stepped_at = self._stepped_at
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        return bool(stepped_at) and frame is not None and not may_repeat(stepped_at, places(frame))

    def is_left_by(self, errors: Iterable[BaseException]) -> bool:
        """Whether an error and all behind it were raised where nothing can get back to the last step.

        This is unknown for a ``raise`` beside the loop that stepped: it has no way back from within the loop either. A
        call in the loop that a ``break`` follows has none, and counts as one after the loop.
        """
        stepped_in = [code for code, _ in reversed(self._stepped_at)]
        # One that was caught begins with the function that caught it.
        raised = [list(dropwhile(lambda place: place[0] not in stepped_in, _raised_at(each))) for each in errors]
        return any(raised) and not any(self._may_go_on(each, stepped_in) for each in raised if each)

    def _may_go_on(self, raised: list[Place], stepped_in: list[CodeType]) -> bool:
        code, offset = raised[-1]
        if code in stepped_in and dis.opname[code.co_code[offset]] == "RAISE_VARARGS":
            return True
        return may_repeat(self._stepped_at[: len(stepped_in) - stepped_in.index(raised[0][0])], raised[::-1])


def _raised_at(error: BaseException) -> list[Place]:
    """Return the calls that an exception went through, outermost first."""
    found, traceback = [], error.__traceback__
    while traceback is not None:
        found.append((traceback.tb_frame.f_code, traceback.tb_lasti))
        traceback = traceback.tb_next
    return found


def places(frame: FrameType | None) -> list[Place]:
    """Return a thread's call stack, innermost first."""
    found = []
    while frame is not None:
        found.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return found


def may_repeat(before: Sequence[Place], now: Sequence[Place]) -> bool:
    """Whether a thread at ``now`` may get back to ``before`` through its current calls."""
    if _recurs(before, now):
        return True
    for (then_code, then), (code, here) in zip(reversed(before), reversed(now), strict=False):
        # Both were called from the same place: any code in between, such as C, may call the other again.
        if then_code is not code:
            return True
        flow = _Flow.of(code)
        if flow is None or flow.leads(here, then):
            return True
        if not flow.is_same(here, then):
            return False
    return True


def _recurs(before: Sequence[Place], now: Sequence[Place]) -> bool:
    """Whether a recursive function may get to where any of its calls was."""
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
    """The control flow graph of a function: each instruction's successors, and the source that it was compiled from.

    Python compiles some source twice, such as the condition of a ``while``: both copies count as one instruction.
    """

    ways: Mapping[int, set[int]]
    sources: Mapping[int, Hashable]

    @classmethod
    def of(cls, code: CodeType) -> _Flow | None:
        """Build the graph of a function; None if this Python does not expose it."""
        instructions = list(dis.get_instructions(code))
        protected = _protected(code, instructions)
        return None if protected is None else cls(_ways(instructions, protected), _sources(instructions))

    def leads(self, here: int, target: int) -> bool:
        """Whether control can get from ``here`` to ``target``, or back to it if they are the same."""
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
        """Return the offset where an instruction begins; during a call, a frame points to the end of one."""
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
    """Map each instruction to its opcode and source position; one without a position maps to itself."""
    found: dict[int, Hashable] = {}
    line: int | None = None
    for each in instructions:
        line = each.starts_line or line
        piece = getattr(each, "positions", (line,))  # in Python 3.10 only the line
        found[each.offset] = each.offset if piece[0] is None else (each.opcode, each.arg, *piece)
    return found


def _protected(code: CodeType, instructions: list[dis.Instruction]) -> list[tuple[int, int, int]] | None:
    """Return the ranges protected by exception handlers, with their targets; None if Python does not expose them."""
    if not hasattr(code, "co_exceptiontable"):  # Python 3.10 has a set-up instruction before each protected range
        setups = (each for each in instructions if each.opname.startswith("SETUP_"))
        return [(each.offset, each.argval, each.argval) for each in setups]
    entries = getattr(dis.Bytecode(code), "exception_entries", None)
    return None if entries is None else [(each.start, each.end, each.target) for each in entries]
