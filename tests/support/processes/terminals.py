"""What a test sees of a terminal: streams that say they are one, and one width for all pages."""

from __future__ import annotations

import io

import pytest


@pytest.fixture(autouse=True)
def _plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages have one width, and are painted where a test asks for it, whoever started the tests."""
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("NO_COLOR", raising=False)


class Terminal(io.StringIO):
    """A terminal that keeps its output."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True
