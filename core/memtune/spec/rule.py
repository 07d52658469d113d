"""What a rule over several fields is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from memtune.spec.errors import Problem
from memtune.spec.job import JobSpec


@dataclass(frozen=True)
class Rule:
    """One rule: ``cel`` holds for the block at ``owner``, ``check`` finds the problem in the whole spec."""

    owner: str
    cel: str
    message: str
    check: Callable[[JobSpec], Problem | None]
