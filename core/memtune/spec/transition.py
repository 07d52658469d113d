"""What of a job may still change once it is under way: the rules for edits, in CEL and in Python."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from memtune.spec.errors import Problem
from memtune.spec.job import Job, JobSpec
from memtune.spec.rule import FORBIDDEN

# A plan was measured for these; with others the measurements would mean nothing, and the global batch is sacred.
FIXED = ("model", "training", "resources", "template", "integration", "launcher", "runner", "checkpoint")


@dataclass(frozen=True)
class Transition:
    """One field of the spec that stays as it is after the phase Pending."""

    field: str
    reason: ClassVar[str] = FORBIDDEN

    @property
    def path(self) -> str:
        """The field to blame."""
        return f"spec.{self.field}"

    @property
    def cel(self) -> str:
        """The rule, for the root of the object: spec and status are both in sight only there.

        What is foreign to the schema (`template`, `model.hfConfig`) is compared as well. An API server takes two blocks
        of as many fields for equal if one has a field that the other has not; then the operator alone sees the edit.
        """
        pending = "!has(oldSelf.status) || !has(oldSelf.status.phase) || oldSelf.status.phase == 'Pending'"
        new, old = f"self.spec.{self.field}", f"oldSelf.spec.{self.field}"
        if JobSpec.model_fields[self.field].default is None:
            return f"{pending} || (has({new}) ? has({old}) && {new} == {old} : !has({old}))"
        return f"{pending} || {new} == {old}"

    @property
    def message(self) -> str:
        """What the user reads."""
        return f"{self.path} cannot change once the job is under way; delete the job and create it again"


TRANSITIONS = tuple(Transition(field) for field in FIXED)


def forbidden_changes(old: Job, new: Job) -> list[Problem]:
    """What the edit from ``old`` to ``new`` may not change at this phase."""
    if old.status.get("phase", "Pending") == "Pending":
        return []
    return [
        Problem(
            f"spec.{field}", getattr(new.spec, field), "it cannot change once the job is under way; create a new job"
        )
        for field in FIXED
        if getattr(old.spec, field) != getattr(new.spec, field)
    ]
