"""The retry delay: how long a job waits between two runs of a kind (exponential backoff)."""

from __future__ import annotations

from collections.abc import Sequence

from memtune.api.status import AttemptStatus, RunStatus, to_seconds
from memtune.controller.records import TRIED, ended_as, has_ended

# An attempt longer than this was well under way, so the delay starts over before the next one.
_SETTLED_SECONDS = 600.0
_FIRST_DELAY_SECONDS = 10.0
_LONGEST_DELAY_SECONDS = 300.0


def retry_delay(records: Sequence[RunStatus], now: float) -> float:
    """The retry delay: seconds until the next run of a kind may start, 10 s x 2^n after the last end, up to 5 min.

    Only consecutive runs that the cluster or a failure ended count; after a probe with a result there is no delay.
    """
    idle = 0
    for record in reversed(records):
        if _resets_delay(record):
            break
        idle += 1
    if records and isinstance(records[-1], AttemptStatus):
        idle = max(idle, 1)
    ended = to_seconds(records[-1].ended_at) if records else None
    if not idle or ended is None:
        return 0.0
    delay = min(_FIRST_DELAY_SECONDS * 2.0 ** min(idle - 1, 10), _LONGEST_DELAY_SECONDS)
    # A clock that jumped back must not extend the delay.
    return min(ended + delay - now, delay)


def _resets_delay(record: RunStatus) -> bool:
    started, ended = to_seconds(record.started_at), to_seconds(record.ended_at)
    if isinstance(record, AttemptStatus):
        return started is not None and ended is not None and ended - started > _SETTLED_SECONDS
    return not has_ended(record) or ended_as(record, *TRIED)
