"""What a run cannot start with: one line for people, and a report with the same words."""

from __future__ import annotations


class BadInputError(ValueError):
    """Something that the run was given cannot work. The message says what, where, and what to do."""


class RefusedImportError(BadInputError, ImportError):
    """A module that the run cannot work with; to a library that can do without the module, one that is not there."""
