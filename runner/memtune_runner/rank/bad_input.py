"""Errors of bad input: one line for people, and a report with the same words."""

from __future__ import annotations

from memtune.wire.report import Ending


class BadInputError(ValueError):
    """The run was given something that cannot work. The message says what, where, and what to do."""

    ending = Ending.BAD_INPUT


class RefusedImportError(BadInputError, ImportError):
    """A module that the run cannot work with. A library that can do without the module sees it as not installed."""


class PlanNotAppliedError(BadInputError):
    """The script trains differently from its plan."""

    ending = Ending.PLAN_NOT_APPLIED
