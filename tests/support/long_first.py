"""Lets tests that are marked as long begin before the others: a hook for conftest.py."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Move them to the front; otherwise the order stays."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)
