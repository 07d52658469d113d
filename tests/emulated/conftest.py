"""What all tests on the emulated GPU have in common."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests have the other processors, and what has the same environment is forked from the same Python."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
