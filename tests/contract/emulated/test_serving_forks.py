"""The Python from which runs of several plans are forked, without its libraries: what it starts, tells, and leaves."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from memtune.wire import environment
from memtune.wire.run import RunKind
from memtune_runner import forks

_LIMIT_SECONDS = 60
_DDP, _DEEPSPEED = "bf16-ddp-none-mb2x1-sdpa", "bf16-z1-none-mb2x1-sdpa"
_VARIABLES = {
    environment.RUN_KIND: str(RunKind.PROBE), environment.GLOBAL_BATCH: "2", environment.SEQUENCE_LENGTH: "8",
}  # fmt: skip


def _launch(request: dict[str, Any], outputs: Sequence[int], libraries: Any) -> NoReturn:
    """In place of a launcher: tells whether DeepSpeed is there, and ends with 7, at once or if it may read."""
    os.write(outputs[0], b"with DeepSpeed" if libraries.have_deepspeed else b"without")
    for descriptor in request["words"]:
        os.read(int(descriptor), 1)
    os._exit(7)


class Run:
    """A run that was asked for."""

    def __init__(self, connection: socket.socket, plan: str, *words: str) -> None:
        self._told, telling = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._told.settimeout(_LIMIT_SECONDS)
        self._output, write = os.pipe()
        request = {"words": words, "environment": {**_VARIABLES, environment.PLAN: plan}}
        with telling:
            socket.send_fds(connection, [json.dumps(request).encode()], [write, write, telling.fileno()])
        os.close(write)
        self.pid = int(self._told.recv(64))

    def code(self) -> int:
        """How it ended."""
        with self._told:
            return int(self._told.recv(64) or -signal.SIGKILL)

    def said(self) -> str:
        """What it wrote, once nobody can write more."""
        text = b""
        while select.select([self._output], [], [], _LIMIT_SECONDS)[0]:
            if not (part := os.read(self._output, 64)):
                os.close(self._output)
                return text.decode()
            text += part
        raise AssertionError(f"its output is still open after {text!r}")


@pytest.fixture(params=[True, False])
def can_add_deepspeed(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def gate() -> Iterator[tuple[int, int]]:
    """A pipe that the runs have, too."""
    ends = os.pipe()
    yield ends
    for each in ends:
        os.close(each)


@pytest.fixture
def have_accelerate() -> bool:
    return False


@pytest.fixture
def connection(
    can_add_deepspeed: bool, have_accelerate: bool, monkeypatch: pytest.MonkeyPatch
) -> Iterator[socket.socket]:
    """To the Python that serves."""
    libraries = SimpleNamespace(have_accelerate=have_accelerate, have_deepspeed=False, can_be_shared=True)

    def add_deepspeed() -> None:
        libraries.have_deepspeed, libraries.can_be_shared = True, can_add_deepspeed

    libraries.add_deepspeed = add_deepspeed
    monkeypatch.setattr(forks, "_launch", _launch)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if (pid := os.fork()) == 0:
        ours.close()
        forks._serve(theirs, libraries)  # type: ignore[arg-type]
    theirs.close()
    yield ours
    ours.close()
    assert os.waitpid(pid, 0) == (pid, 0)


def test_each_run_is_forked_from_a_python_with_its_imports(connection: socket.socket, can_add_deepspeed: bool) -> None:
    for plan, said in ((_DDP, "without"), (_DEEPSPEED, "with DeepSpeed"), (_DEEPSPEED, "with DeepSpeed")):
        run = Run(connection, plan)
        assert run.said() == (said if can_add_deepspeed else "without")
        assert run.code() == 7


@pytest.mark.parametrize("have_accelerate", [True])
def test_each_run_has_deepspeed_where_accelerate_imports_it(connection: socket.socket, can_add_deepspeed: bool) -> None:
    for plan in (_DDP, _DEEPSPEED):
        run = Run(connection, plan)
        assert run.said() == ("with DeepSpeed" if can_add_deepspeed else "without")
        assert run.code() == 7


@pytest.mark.parametrize("plan", [_DDP, _DEEPSPEED])
def test_a_run_ends_beside_another(gate: tuple[int, int], connection: socket.socket, plan: str) -> None:
    waiting, quick = Run(connection, plan, str(gate[0])), Run(connection, plan)
    assert (quick.code(), bool(quick.said())) == (7, True)
    os.write(gate[1], b"1")
    assert (waiting.code(), bool(waiting.said())) == (7, True)


@pytest.mark.parametrize("plan", [_DDP, _DEEPSPEED])
def test_runs_end_with_the_process_that_requested_them(
    gate: tuple[int, int], connection: socket.socket, plan: str
) -> None:
    run = Run(connection, plan, str(gate[0]))
    connection.close()
    assert run.code() == -signal.SIGKILL
    run.said()  # it is not there any more, nor is anything that it has started
