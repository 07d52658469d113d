"""`Rule`: a validation rule over several fields, in CEL and in Python."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from memtune.api.errors import Problem
from memtune.api.job import JobSpec

# Reasons of apiextensions.k8s.io/v1 for an invalid field.
INVALID = "FieldValueInvalid"
REQUIRED = "FieldValueRequired"
FORBIDDEN = "FieldValueForbidden"


@dataclass(frozen=True)
class Rule:
    """One rule: ``cel`` must hold for the block at ``owner``; ``check`` finds the problem in the whole spec.

    ``path`` is the field to blame, which is ``owner`` or inside it; ``reason`` says what is wrong with it.

    The API server evaluates a rule even if a number exceeds its limits or a text does not match its pattern. ``cel``
    must not fail then: no division by what may be 0, no product that may overflow.
    """

    owner: str
    path: str
    cel: str
    message: str
    check: Callable[[JobSpec], Problem | None]
    reason: str = INVALID
