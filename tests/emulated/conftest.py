"""The rehearsal of a GPU day takes longer than all other tests, and begins first."""

from __future__ import annotations

from long_first import pytest_collection_modifyitems  # noqa: F401  # a hook, found by its name
