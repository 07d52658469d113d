"""The supervisor: parts that do not become ready, and messages about parts that are restarted."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dev.cluster.supervisor import Part, Supervisor, is_alive


@pytest.fixture
def status(tmp_path: Path) -> Path:
    return tmp_path / "status.json"


@pytest.fixture
def part(tmp_path: Path) -> Callable[[Callable[[], bool]], Part]:
    return lambda ready: Part("lasting", ["sleep", "600"], tmp_path / "lasting.log", ready=ready)


@pytest.fixture(autouse=True)
def one_look(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing waits; what was started and still runs is ended."""
    began: list[Any] = []
    popen = subprocess.Popen

    def start(*words: Any, **settings: Any) -> Any:
        began.append(popen(*words, **settings))
        return began[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    yield
    for process in began:
        process.kill()
        process.wait()


def test_a_part_that_does_not_become_ready_is_ended(status: Path, part: Callable[[Callable[[], bool]], Part]) -> None:
    supervising = Supervisor(status, ready_seconds=0)
    supervising._start_missing([part(lambda: False)])
    told = json.loads(status.read_text())
    assert told["parts"]["lasting"]["dead"] == "was not ready after 0 s"
    assert not is_alive(told["parts"]["lasting"]["pid"])
    assert not told["started"]


def test_a_start_succeeds_only_once_restarted_parts_are_ready(
    status: Path, part: Callable[[Callable[[], bool]], Part]
) -> None:
    said: list[bool] = []

    def ready() -> bool:
        said.append(json.loads(status.read_text())["started"])
        return True

    supervising = Supervisor(status)
    supervising._start_missing([part(ready)])
    supervising._bury(json.loads(status.read_text())["parts"]["lasting"]["pid"], "ended")
    supervising._start_missing([part(ready)])
    assert said == [False, False]
    assert json.loads(status.read_text())["started"]
