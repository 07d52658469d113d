"""Errors of bad input: one line for people, and a report with the same words."""

from __future__ import annotations

from memtune.wire.report import Ending

_errors: list[BadInputError] = []


class BadInputError(ValueError):
    """The run was given something that cannot work. The message says what, where, and what to do."""

    ending = Ending.BAD_INPUT
    is_final = True

    def __init__(self, *words: object) -> None:
        super().__init__(*words)
        if self.is_final and not _errors:
            _errors.append(self)


class BadCommandError(BadInputError):
    """The command cannot run under any plan."""


class RefusedImportError(BadInputError, ImportError):
    """A module that the run cannot work with. A library that can do without the module sees it as not installed."""

    is_final = False


class PlanNotAppliedError(BadInputError):
    """The script trains differently from its plan."""

    ending = Ending.PLAN_NOT_APPLIED


def first_error() -> BadInputError | None:
    """The first error of this process, which ends its run even where the script has caught it."""
    return _errors[0] if _errors else None


def reset() -> None:
    """Back to the beginning of a run."""
    _errors.clear()
