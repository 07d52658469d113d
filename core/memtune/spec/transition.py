"""What of a job may still change once it is under way: the rules for edits, in CEL and in Python."""

from __future__ import annotations

from dataclasses import dataclass

from memtune.spec.errors import Problem
from memtune.spec.job import Job, JobSpec

# A plan was measured for these; with others the measurements would mean nothing, and the global batch is sacred.
FIXED = ("model", "training", "resources", "template", "integration", "launcher", "runner", "checkpoint")
# Of these CEL sees only an empty block (their content is foreign to the schema), so that Python alone compares them.
_FOREIGN_INSIDE = ("model", "template")


@dataclass(frozen=True)
class Transition:
    """One field of the spec that stays as it is after the phase Pending."""

    field: str

    @property
    def cel(self) -> str:
        """The rule, for the root of the object: spec and status are both in sight only there."""
        pending = "!has(oldSelf.status) || !has(oldSelf.status.phase) || oldSelf.status.phase == 'Pending'"
        new, old = f"self.spec.{self.field}", f"oldSelf.spec.{self.field}"
        if JobSpec.model_fields[self.field].default is None:
            return f"{pending} || (has({new}) ? has({old}) && {new} == {old} : !has({old}))"
        return f"{pending} || {new} == {old}"

    @property
    def message(self) -> str:
        """What the user reads."""
        return f"spec.{self.field} cannot change once the job is under way; delete the job and create it again"


TRANSITIONS = tuple(Transition(field) for field in FIXED if field not in _FOREIGN_INSIDE)


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
