"""What SIGTERM does to a worker."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from memtune_runner.worker import _ending_on_sigterm


@pytest.fixture(autouse=True)
def own_handler() -> Iterator[None]:
    """The handler of the test's process comes back."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


def test_the_script_is_unwound() -> None:
    with pytest.raises(SystemExit, match="143"), _ending_on_sigterm():
        os.kill(os.getpid(), signal.SIGTERM)


def test_code_after_the_script_is_not_interrupted() -> None:
    with pytest.raises(ValueError, match="before the script"), _ending_on_sigterm():
        raise ValueError("before the script")
    os.kill(os.getpid(), signal.SIGTERM)
