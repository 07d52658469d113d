"""The messages about a process that could not trace, and what it leaves for them."""

from __future__ import annotations

import mmap
import os
import sysconfig
from tempfile import NamedTemporaryFile

import pytest

from memtune_runner.trace_process import error_messages
from memtune_runner.trace_process.memory import Memory
from memtune_runner.tracing.shared_status import Board

STACK = f"""Fatal Python error: Segmentation fault

Stack (most recent call first):
  File "{sysconfig.get_path("stdlib")}/ctypes/__init__.py", line 519 in string_at
  File "/code/train.py", line 7 in build
  File "/code/main.py", line 9 in <module>
"""
PLACE = "while the factory was called"


def test_the_innermost_line_of_the_users_is_named() -> None:
    assert error_messages.where(PLACE, STACK) == f"{PLACE}, in /code/train.py, line 7"
    assert error_messages.where(PLACE, "") == PLACE
    assert error_messages.where("", "") == "while torch was imported"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "exit code 0 there"),
        (3, "exit code 3 there"),
        (-6, "signal 6 (SIGABRT) there; a compiled library does that"),
        (-9, "signal 9 (SIGKILL) there; the kernel does that where host memory runs out"),
        (-11, "signal 11 (SIGSEGV) there; the code there"),
        (-63, "signal 63 there; the code there"),
    ],
)
def test_a_silent_end_is_reported_by_its_exit_code(code: int, words: str) -> None:
    assert words in error_messages.of_code(code, "there")


def test_an_unexpected_exception_is_reported_by_its_first_line() -> None:
    told = error_messages.unexpected(ValueError("x" * 600 + "\nmore"), "there")
    assert told == f"tracing stopped there: ValueError: {'x' * 500}"


def test_shared_status_keeps_the_last_text_and_cuts_long_ones() -> None:
    board = Board()
    assert (board.place, board.outcome) == ("", "")
    board.set_place("in a place with a long name")
    board.set_place("elsewhere \ud800")
    board.conclude("é" * 10_000)
    assert board.place == "elsewhere ?"
    assert 1000 < len(board.outcome) < 5000


def taken_bytes(memory: Memory) -> int:
    """Return this process's memory in whole MiB."""
    return next(mib << 20 for mib in range(100_000) if not memory.exceeds(mib << 20, [os.getpid()]))


@pytest.mark.skipif(not os.path.ismount("/dev/shm"), reason="needs files that are memory")
def test_a_file_in_memory_counts_from_when_it_was_open_to_when_it_is_removed() -> None:
    memory, size = Memory(), 32 << 20
    before = taken_bytes(memory)
    with NamedTemporaryFile(dir="/dev/shm") as file:
        file.write(bytes(2 * size))
        file.flush()
        assert not memory.exceeds(size, []), "somebody else's"
        assert memory.exceeds(before + size, [os.getpid()])
        assert memory.exceeds(size, []), "it was closed"
    assert not memory.exceeds(size, [])


@pytest.mark.skipif(not os.path.exists("/proc/self/smaps_rollup"), reason="reads /proc")  # noqa: PTH110
def test_memory_that_is_shared_counts_whether_it_is_mapped_or_in_a_file() -> None:
    memory, size = Memory(), 32 << 20
    before = taken_bytes(memory)
    with mmap.mmap(-1, size) as held:
        held.write(bytes(size))
        assert memory.exceeds(before + size // 2, [os.getpid()])
    with open(os.memfd_create("held"), "wb") as file:  # noqa: PTH123
        file.write(bytes(2 * size))
        file.flush()
        assert memory.exceeds(before + size, [os.getpid()])
    assert not memory.exceeds(before + size, [os.getpid()])
