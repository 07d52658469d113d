"""What the process that traces tells the one that watches it, also in case that it has no time for last words."""

from __future__ import annotations

import mmap

_LENGTH_BYTES = 4
_TEXT_BYTES = 4096
_PART_BYTES = _LENGTH_BYTES + _TEXT_BYTES
_PLACE, _OUTCOME = 0, _PART_BYTES


class Board:
    """Two texts in memory that a fork shares: no factory can close it, as it can a pipe, and no death loses it."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 2 * _PART_BYTES)

    def stand_at(self, place: str) -> None:
        """Tell what is being done from now on."""
        self._write(_PLACE, place)

    def conclude(self, outcome: str) -> None:
        """Tell how it ended, as the last thing."""
        self._write(_OUTCOME, outcome)

    @property
    def place(self) -> str:
        """What was done last."""
        return self._read(_PLACE)

    @property
    def outcome(self) -> str:
        """How it ended; empty if that was never told."""
        return self._read(_OUTCOME)

    def _write(self, start: int, text: str) -> None:
        words = text.encode(errors="replace")[:_TEXT_BYTES]
        self._memory[start : start + _LENGTH_BYTES] = len(words).to_bytes(_LENGTH_BYTES, "little")
        self._memory[start + _LENGTH_BYTES : start + _LENGTH_BYTES + len(words)] = words

    def _read(self, start: int) -> str:
        length = int.from_bytes(self._memory[start : start + _LENGTH_BYTES], "little")
        begins = start + _LENGTH_BYTES
        return self._memory[begins : begins + min(length, _TEXT_BYTES)].decode(errors="replace")


def unheard(_place: str) -> None:
    """Nobody asks where the trace stands."""
