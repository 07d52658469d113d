"""What the ranks of a run say of themselves: read off the metrics of its pods, and put together over time. Pure."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

_SAMPLE = re.compile(r"(memtune_\w+)\{([^}]*)\} (\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_RANK = re.compile(r"[0-9]{1,6}")
# Speed is told over as long as this: a step may take longer than the pause between two looks.
_WINDOW_SECONDS = 60.0


@dataclass(frozen=True)
class Reading:
    """The numbers of one rank at one moment, by the names of their metrics without the prefix."""

    rank: int
    values: dict[str, float] = field(default_factory=dict)

    @property
    def total_bytes(self) -> float:
        """What its device has."""
        return self.values.get("hbm_total_bytes", 0.0)

    @property
    def used_bytes(self) -> float:
        """What is in use on its device."""
        return self.values.get("hbm_reserved_bytes", 0.0) + self._outside_bytes

    @property
    def peak_bytes(self) -> float:
        """The most that was in use over the last whole steps."""
        return self.values.get("hbm_peak_reserved_bytes", 0.0) + self._outside_bytes

    @property
    def _outside_bytes(self) -> float:
        return self.values.get("hbm_non_torch_bytes", 0.0)

    @property
    def fragmentation(self) -> float | None:
        """The share of the reserved bytes that was not active when most was."""
        return self.values.get("hbm_peak_fragmentation_ratio")

    @property
    def retries(self) -> int:
        """Allocations that succeeded only after the cache was emptied."""
        return int(self.values.get("allocator_retries_total", 0.0))

    @property
    def steps(self) -> int:
        """Optimizer steps since the run began."""
        return int(self.values.get("step_seconds_count", 0.0))


def readings(text: str) -> list[Reading]:
    """The ranks of one pod, from its metrics; what cannot be read is passed over, for anything may answer."""
    found: dict[int, dict[str, float]] = {}
    for match in _SAMPLE.finditer(text):
        labels = dict(_LABEL.findall(match[2]))
        value = _number(match[3])
        if _RANK.fullmatch(labels.get("rank", "")) and "le" not in labels and value is not None:
            found.setdefault(int(labels["rank"]), {})[match[1].removeprefix("memtune_")] = value
    return [Reading(rank, values) for rank, values in sorted(found.items())]


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


class Ranks:
    """The ranks of one run over time."""

    def __init__(self, run: str) -> None:
        self.run = run
        self.latest: tuple[Reading, ...] = ()
        # When it was looked at, tokens of all ranks, steps and seconds of the rank that is furthest.
        self._history: deque[tuple[float, float, float, float]] = deque()

    def seen(self, now: float, found: Iterable[Reading]) -> None:
        """All ranks were looked at."""
        self.latest = tuple(sorted(found, key=lambda each: each.rank))
        if not self.latest:
            return
        furthest = max(self.latest, key=lambda each: each.steps)
        tokens = sum(each.values.get("tokens_total", 0.0) for each in self.latest)
        self._history.append((now, tokens, furthest.steps, furthest.values.get("step_seconds_sum", 0.0)))
        while now - self._history[0][0] > _WINDOW_SECONDS and len(self._history) > 2:
            self._history.popleft()

    @property
    def steps(self) -> int:
        """Optimizer steps since the run began."""
        return max((each.steps for each in self.latest), default=0)

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens per second over all ranks lately; None before two looks."""
        if len(self._history) < 2:
            return None
        (start, before, *_), (end, after, *_) = self._history[0], self._history[-1]
        # Tokens that became fewer are those of ranks that started again.
        return (after - before) / (end - start) if end > start and after >= before else None

    @property
    def step_seconds(self) -> float | None:
        """Seconds of one optimizer step lately, else since the run began; None before the first."""
        if not self._history:
            return None
        (*_, steps, seconds), (*_, all_steps, all_seconds) = self._history[0], self._history[-1]
        if all_steps > steps and all_seconds >= seconds:
            return (all_seconds - seconds) / (all_steps - steps)
        return all_seconds / all_steps if all_steps else None
