"""Where the script read values of the emulated GPU, and which of them no kernel had computed."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from memtune.units import counted

TRUE, MADE_UP = "true", "made up"
_PLACES_SHOWN = 3
_OURS = str(Path(__file__).parent.parent)


class ValueReads:
    """Where the script read values of the GPU."""

    def __init__(self) -> None:
        self._times: Counter[tuple[str, int, str, bool]] = Counter()
        self._is_paused = False

    @property
    def made_up_sizes(self) -> int:
        """How often a tensor got its size from values that are not true."""
        return sum(times for (_, _, value, sizes), times in self._times.items() if sizes and value != TRUE)

    def note(self, is_true: bool, sizes: bool = False) -> None:
        """Record that the script reads a value now, or that a tensor gets its size from one."""
        if self._is_paused:
            return
        frame = sys._getframe(1)
        while frame.f_back is not None and _is_library(frame.f_code.co_filename):
            frame = frame.f_back
        self._times[frame.f_code.co_filename, frame.f_lineno, TRUE if is_true else MADE_UP, sizes] += 1

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Record nothing of what is read in the block."""
        self._is_paused, before = True, self._is_paused
        try:
            yield
        finally:
            self._is_paused = before

    def clear(self) -> None:
        """Forget what was read so far."""
        self._times.clear()

    def report(self) -> list[dict[str, Any]]:
        """Return the places, most frequent first."""
        return [
            {"file": file, "line": line, "value": value, "sizes": sizes, "times": times}
            for (file, line, value, sizes), times in self._times.most_common()
        ]


def words_of_reads(report: Sequence[Mapping[str, Any]], reader: str = "the script") -> str | None:
    """Say where values were read that are not true; None if there was none."""
    made_up = [each for each in report if each["value"] != TRUE]
    if not made_up:
        return None
    times = counted(sum(each["times"] for each in made_up), "value")
    places = ", ".join(f"{each['file']}:{each['line']}" for each in made_up[:_PLACES_SHOWN])
    made_up_sizes = sum(each["times"] for each in made_up if each["sizes"])
    sizes = "memory may depend on them"
    if made_up_sizes:
        sizes = f"{counted(made_up_sizes, 'size')} of tensors came from them, so memory depends on them"
    more = ", ..." if len(made_up) > _PLACES_SHOWN else ""
    return f"{reader} read {times} that no kernel has computed ({places}{more}); {sizes}"


def _is_library(file: str) -> bool:
    return file.startswith((_OURS, "<")) or "/torch/" in file or "/contextlib.py" in file
