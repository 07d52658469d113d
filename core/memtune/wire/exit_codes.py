"""The exit codes with which the runner itself ends a run, so that the ending is known even without a report."""

from __future__ import annotations

from memtune.wire.report import Ending

EXIT_CODES = {
    Ending.DEVICE_OOM: 85,
    Ending.HOST_OOM: 86,
    Ending.HUNG: 87,
    Ending.BAD_INPUT: 88,
    Ending.PLAN_NOT_APPLIED: 89,
}
