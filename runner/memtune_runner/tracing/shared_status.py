"""Shared memory in which the trace process leaves its current place and outcome for its parent."""

from __future__ import annotations

import mmap

_LENGTH_BYTES = 4
_TEXT_BYTES = 4096
_PART_BYTES = _LENGTH_BYTES + _TEXT_BYTES
_PLACE, _OUTCOME = 0, _PART_BYTES


class Board:
    """Two texts in memory shared by a fork: unlike a pipe, no factory can close it and no crash loses it."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 2 * _PART_BYTES)

    def set_place(self, place: str) -> None:
        """Write what is being done from now on."""
        self._write(_PLACE, place)

    def conclude(self, outcome: str) -> None:
        """Write the outcome, as the last act."""
        self._write(_OUTCOME, outcome)

    @property
    def place(self) -> str:
        """The last place written."""
        return self._read(_PLACE)

    @property
    def outcome(self) -> str:
        """The outcome; empty if none was written."""
        return self._read(_OUTCOME)

    def _write(self, start: int, text: str) -> None:
        words = text.encode(errors="replace")[:_TEXT_BYTES]
        self._memory[start : start + _LENGTH_BYTES] = len(words).to_bytes(_LENGTH_BYTES, "little")
        self._memory[start + _LENGTH_BYTES : start + _LENGTH_BYTES + len(words)] = words

    def _read(self, start: int) -> str:
        length = int.from_bytes(self._memory[start : start + _LENGTH_BYTES], "little")
        begins = start + _LENGTH_BYTES
        return self._memory[begins : begins + min(length, _TEXT_BYTES)].decode(errors="replace")


def ignore_place(_place: str) -> None:
    """Ignore the place of the trace."""
