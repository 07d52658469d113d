"""Classifies an out-of-memory by a report: which kind of memory ran out, and so which rungs of the ladder help."""

from __future__ import annotations

from memtune.allocator.counters import fragmentation
from memtune.api.status import MAX_NATURAL
from memtune.controller.reported_numbers import count
from memtune.planning.ladder import OutOfMemoryKind
from memtune.wire.report import Phase, Report

# The share of reserved memory above active; GMLake (2401.08156) saw up to a third in production.
_FRAGMENTED = 0.2
# Memory outside the allocator is 1 to 2 GB of an 80 GB device; a fifth of it is unusual.
_OUTSIDE = 0.2
_BY_PHASE = {Phase.EVALUATION: OutOfMemoryKind.EVALUATION, Phase.SAVE: OutOfMemoryKind.SAVING}


def kind_of_oom(report: Report | None) -> OutOfMemoryKind:
    """The kind of out-of-memory, from the report."""
    if report is None:
        return OutOfMemoryKind.ACTIVATION
    if report.phase in _BY_PHASE:
        return _BY_PHASE[report.phase]
    memory = report.memory
    reserved, active = count(memory.peak_reserved_bytes), count(memory.peak_active_bytes)
    if active and fragmentation(active, reserved) > _FRAGMENTED:
        return OutOfMemoryKind.FRAGMENTATION
    if count(memory.non_torch_bytes) > _OUTSIDE * (count(memory.device_total_bytes) or MAX_NATURAL):
        return OutOfMemoryKind.OUTSIDE
    return OutOfMemoryKind.STATE if report.phase in (Phase.INIT, Phase.OPTIMIZER_STEP) else OutOfMemoryKind.ACTIVATION
