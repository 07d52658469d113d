"""What a run cannot start or go on with: one line for people, and a report with the same words."""

from __future__ import annotations

from memtune.wire.report import Ending


class BadInputError(ValueError):
    """Something that the run was given cannot work. The message says what, where, and what to do."""

    ending = Ending.BAD_INPUT


class RefusedImportError(BadInputError, ImportError):
    """A module that the run cannot work with; to a library that can do without the module, one that is not there."""


class PlanNotAppliedError(BadInputError):
    """The script trains otherwise than its plan says."""

    ending = Ending.PLAN_NOT_APPLIED
