"""Rules for edits: spec fields that are immutable once the job started, in CEL and in Python."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from memtune.api.fields import SpecBlock
from memtune.api.job import JobSpec
from memtune.api.rule import FORBIDDEN
from memtune.api.training import Resources

# Plans were measured for these values; the global batch never changes.
FIXED = ("model", "training", "resources", "template", "integration", "launcher", "runner", "checkpoint")


@dataclass(frozen=True)
class Transition:
    """One spec field that is immutable after the phase Pending."""

    field: str
    reason: ClassVar[str] = FORBIDDEN

    @property
    def path(self) -> str:
        """The field to blame."""
        return f"spec.{self.field}"

    @property
    def cel(self) -> str:
        """The rule, at the root of the object, the only place that sees both spec and status.

        Fields foreign to the schema (`template`, `model.hfConfig`) are compared as well. An API server considers two
        blocks with equally many fields equal if one has a field that the other lacks; then only the operator sees the
        edit.
        """
        pending = "!has(oldSelf.status) || !has(oldSelf.status.phase) || oldSelf.status.phase == 'Pending'"
        if self.field != "resources":
            return f"{pending} || {_unchanged(JobSpec, self.field, 'spec')}"
        # Nothing was measured for the price: compare field by field, so that it may be added, changed and removed.
        fields = (name for name in Resources.model_fields if name != "gpu_hour_price")
        return f"{pending} || ({' && '.join(_unchanged(Resources, name, self.path) for name in fields)})"

    @property
    def message(self) -> str:
        """The message for the user."""
        return f"{self.path} cannot change once the job is under way; delete the job and create it again"


def _unchanged(block: type[SpecBlock], name: str, path: str) -> str:
    """CEL: a field of the block at ``path`` is unchanged, or still omitted."""
    field = block.model_fields[name]
    new, old = (f"{side}.{path}.{field.alias or name}" for side in ("self", "oldSelf"))
    return f"(has({new}) ? has({old}) && {new} == {old} : !has({old}))" if field.default is None else f"{new} == {old}"


TRANSITIONS = tuple(Transition(field) for field in FIXED)
