"""What a rule over several fields is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from memtune.api.errors import Problem
from memtune.api.job import JobSpec

# The words of apiextensions.k8s.io/v1 for what is wrong with a field.
INVALID = "FieldValueInvalid"
REQUIRED = "FieldValueRequired"
FORBIDDEN = "FieldValueForbidden"


@dataclass(frozen=True)
class Rule:
    """One rule: ``cel`` holds for the block at ``owner``, ``check`` finds the problem in the whole spec.

    ``path`` is the field to blame, of ``owner`` or inside it, and ``reason`` what is wrong with it.

    The API server evaluates a rule although a number is out of its limits or a text does not match its pattern, so that
    ``cel`` must not fail then: no division by what may be 0, no product that may overflow.
    """

    owner: str
    path: str
    cel: str
    message: str
    check: Callable[[JobSpec], Problem | None]
    reason: str = INVALID
