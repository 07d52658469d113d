"""Tells whether a script has left its training loop: from where its functions stand, and where they can still go.

A script that merges its weights or uploads its model makes no more steps, and hangs no more than one that evaluates.
"""

from __future__ import annotations

import dis
import sys
import threading
from bisect import bisect_right
from collections.abc import Sequence
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
# For each instruction those that may come next.
Ways = dict[int, set[int]]


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
    for (then_code, then), (code, here) in zip(reversed(before), reversed(now), strict=False):
        # Beside each other in the same call: whatever is called there, C among it, may call the other one again.
        if then_code is not code:
            return True
        ways = _ways(code)
        if ways is None or _leads(ways, here, then):
            return True
        if _instruction(ways, here) != _instruction(ways, then):
            return False
    return True


def _leads(ways: Ways, here: int, target: int) -> bool:
    """Whether a function can go from here to the target, be it once more."""
    waiting, seen = [_instruction(ways, here)], set[int]()
    while waiting:
        for following in ways[waiting.pop()] - seen:
            seen.add(following)
            waiting.append(following)
    return _instruction(ways, target) in seen


def _instruction(ways: Ways, offset: int) -> int:
    """The instruction that an offset is in: where it calls, a function stands at the end of one."""
    starts = list(ways)
    return starts[bisect_right(starts, offset) - 1]


def _ways(code: CodeType) -> Ways | None:
    """The ways within a function; None where this Python does not tell."""
    instructions = list(dis.get_instructions(code))
    protected = _protected(code, instructions)
    if protected is None:
        return None
    found: Ways = {}
    for each, following in zip(instructions, [*instructions[1:], None], strict=True):
        ways = {handler for start, end, handler in protected if start <= each.offset < end}
        if each.opcode in _JUMPS:
            ways.add(each.argval)
        if following is not None and each.opname not in _GOES_NOT_ON:
            ways.add(following.offset)
        found[each.offset] = ways
    return found


def _protected(code: CodeType, instructions: list[dis.Instruction]) -> list[tuple[int, int, int]] | None:
    """From where to where an exception leads to which handler; None where this Python does not tell."""
    if not hasattr(code, "co_exceptiontable"):  # Python 3.10 sets a block up in front of what it protects
        setups = (each for each in instructions if each.opname.startswith("SETUP_"))
        return [(each.offset, each.argval, each.argval) for each in setups]
    entries = getattr(dis.Bytecode(code), "exception_entries", None)
    return None if entries is None else [(each.start, each.end, each.target) for each in entries]
