"""The ranks of a run: parses their pods' metrics and tracks speed over time. Pure."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

_SAMPLE = re.compile(r"(memtune_\w+)\{([^}]*)\} (\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_RANK = re.compile(r"[0-9]{1,6}")
# The window for speed: a step may take longer than a polling interval.
_WINDOW_SECONDS = 60.0


@dataclass(frozen=True)
class Reading:
    """The metrics of one rank at one moment, by name without the prefix."""

    rank: int
    values: dict[str, float] = field(default_factory=dict)

    @property
    def total_bytes(self) -> float:
        """The memory of the device."""
        return self.values.get("hbm_total_bytes", 0.0)

    @property
    def used_bytes(self) -> float:
        """The memory in use on the device."""
        return self.values.get("hbm_reserved_bytes", 0.0) + self._outside_bytes

    @property
    def peak_bytes(self) -> float:
        """The peak over the last complete steps."""
        return self.values.get("hbm_peak_reserved_bytes", 0.0) + self._outside_bytes

    @property
    def _outside_bytes(self) -> float:
        return self.values.get("hbm_non_torch_bytes", 0.0)

    @property
    def fragmentation(self) -> float | None:
        """The share of peak reserved bytes beyond the peak active bytes."""
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
    """Parse a pod's metrics; invalid lines are skipped, since anything may answer."""
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
        # For each poll: time, tokens of all ranks, and steps and seconds of the most advanced rank.
        self._history: deque[tuple[float, float, float, float]] = deque()

    def seen(self, now: float, found: Iterable[Reading]) -> None:
        """Record a poll of all ranks."""
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
        """Recent tokens per second of all ranks; None before two polls."""
        if len(self._history) < 2:
            return None
        (start, before, *_), (end, after, *_) = self._history[0], self._history[-1]
        # A lower token count means that ranks restarted.
        return (after - before) / (end - start) if end > start and after >= before else None

    @property
    def step_seconds(self) -> float | None:
        """Recent seconds per optimizer step, else since the run began; None before the first step."""
        if not self._history:
            return None
        (*_, steps, seconds), (*_, all_steps, all_seconds) = self._history[0], self._history[-1]
        if all_steps > steps and all_seconds >= seconds:
            return (all_seconds - seconds) / (all_steps - steps)
        return all_seconds / all_steps if all_steps else None
