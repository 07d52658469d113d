"""Which records stay when there are more than a status holds."""

from __future__ import annotations

from typing import Any

from memtune.decide.records import with_attempt, with_probe
from memtune.spec.status import MAX_ATTEMPTS, AttemptStatus, RunStatus, Status
from memtune.spec.tuning import MAX_PROBES

ENDED: dict[str, Any] = {"plan": "bf16-z1-none-mb1x16", "ended_at": "2026-03-01T10:00:00Z"}


def test_of_many_attempts_the_newest_stay_and_the_one_whose_checkpoint_is_the_newest() -> None:
    status = Status()
    for number in range(1, 41):
        saved = "saved" if number == 3 else "unknown"
        record = AttemptStatus(
            name=f"a-train-{number}", number=number, verdict="disrupted", checkpoint=saved, trained=True, **ENDED
        )
        status = with_attempt(status, record)
    assert [record.number for record in status.attempts] == [3, *range(40 - MAX_ATTEMPTS + 2, 41)]


def test_of_many_probes_those_stay_that_told_something() -> None:
    status = Status()
    for number in range(1, 61):
        verdict = "disrupted" if number % 5 == 0 else "succeeded"
        record = RunStatus(name=f"a-probe-{number}", number=number, verdict=verdict, **ENDED)
        status = with_probe(status, record)
    numbers = [record.number for record in status.probes]
    assert len(numbers) == MAX_PROBES
    assert [number for number in numbers if number % 5 == 0] == [60], "the last one always stays"
