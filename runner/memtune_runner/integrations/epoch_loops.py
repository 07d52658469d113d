"""Tells at which of its epochs a resumed script begins, by the variables of the ``for`` loops around its passes.

No loop says how long it is. But the variable of a loop over the epochs, as in ``for epoch in range(3)``, grows by one
with each pass over the training data. Its value is saved with each checkpoint.
"""

from __future__ import annotations

import dis
import inspect
import json
import sys
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

_FILE = "epoch_loops.json"  # not a name of MemTune's own: converting the checkpoint must copy it

_REFERENCES = 3  # of the frame, of a variable, and of the argument

Variables = dict[str, int]  # by the name of their function and their own


class Beginning(NamedTuple):
    """Where a resumed script began: the loop's variable, its first value, and the one that follows the checkpoint."""

    variable: str
    first: int
    expected: int


def loop_variables(frame: FrameType | None) -> Variables:
    """Return the whole numbers over which ``for`` loops of a frame and its callers go."""
    found: Variables = {}
    while frame is not None:
        if targets := _targets(frame.f_code):
            variables = frame.f_locals
            for name in targets:
                if type(value := variables.get(name)) is int:
                    found.setdefault(f"{frame.f_code.co_name}.{name}", value)
            # A function would keep this copy to its end, with its tensors, unless `locals()` gave it to the script.
            is_copy = frame.f_code.co_flags & inspect.CO_OPTIMIZED and sys.version_info < (3, 13)
            if is_copy and sys.getrefcount(variables) <= _REFERENCES:
                variables.clear()
        frame = frame.f_back
    return found


class EpochLoops:
    """The variables that count the passes in which this process trains."""

    def __init__(self) -> None:
        self._now: Variables = {}
        self._begun: Variables = {}  # those of the first pass
        self._first: Variables = {}  # of these, what has grown by one with each pass
        self._passes = 0
        self._saved: Variables = {}
        self._is_last_whole = False

    def trains(self, variables: Variables) -> None:
        """Record that the first batch of a pass is trained."""
        self._now = variables

    def pass_ended(self, variables: Variables) -> None:
        """Record the end of a pass in which a step was made."""
        if not self._passes:
            self._begun = variables
        counted = {name: first for name, first in self._first.items() if variables.get(name) == first + self._passes}
        self._first = counted if self._passes else variables
        self._passes, self._is_last_whole = self._passes + 1, True

    def pass_left(self) -> None:
        """Record that the script has left a pass before its end, even if it trained nothing in it."""
        self._is_last_whole = False

    def save(self, directory: Path) -> None:
        """Write where the script is into a checkpoint."""
        (directory / _FILE).write_text(json.dumps(self._now), encoding="utf-8")

    def resume(self, directory: Path) -> None:
        """Read where the script was from a checkpoint."""
        file = directory / _FILE
        self._saved = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}

    def begins_again(self, is_within_epoch: bool) -> Beginning | None:
        """Return where the script seems to have begun before its checkpoint; None if it did not, or if that is unknown.

        A script that leaves its last pass ends by something else than its loop, such as a count of steps that it has
        resumed. Only a process of several passes shows which variable counts them, and one that begins again has them.
        One that is farther in another loop, such as over stages, goes on there. A loop over the epochs that are left
        looks like one that begins again, and so does one that a count of steps ends between two epochs.
        """
        is_farther = any(self._begun.get(name, value) > value for name, value in self._saved.items())
        if self._passes < 2 or not self._is_last_whole or is_farther:
            return None
        follows = 0 if is_within_epoch else 1
        begun = [
            Beginning(name.rpartition(".")[2], first, self._saved[name] + follows)
            for name, first in self._first.items()
            if name in self._saved
        ]
        again = [each for each in begun if each.first < each.expected]
        return again[0] if again and len(again) == len(begun) else None


@lru_cache(256)
def _targets(code: CodeType) -> tuple[str, ...]:
    """Return the names to which the ``for`` loops of a function assign."""
    instructions = list(dis.get_instructions(code))
    stores = (store for loop, store in pairwise(instructions) if loop.opname == "FOR_ITER")
    # Since Python 3.13, one instruction may store a variable and load another.
    names = (each.argval[0] if isinstance(each.argval, tuple) else each.argval for each in stores if _stores(each))
    return tuple(dict.fromkeys(names))


def _stores(instruction: dis.Instruction) -> bool:
    return instruction.opname.startswith(("STORE_FAST", "STORE_NAME", "STORE_GLOBAL", "STORE_DEREF"))
