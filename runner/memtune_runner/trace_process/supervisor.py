"""Runs a trace in a subprocess, enforces its limits, and reports how it ended in any case.

This process runs none of the user's code and imports no torch, so it can report a crash, an `os._exit` or a thread
that is stuck in C.
"""

from __future__ import annotations

import faulthandler
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, NoReturn

from memtune_runner.launch.process_trees import adopt_orphans, descendants, dying_with_parent, send
from memtune_runner.launch.received_signals import Signals
from memtune_runner.rank import stacks
from memtune_runner.trace_process import error_messages
from memtune_runner.trace_process.memory import Memory
from memtune_runner.tracing.shared_status import Board

_LOOK_EVERY_SECONDS, _PAUSE_PER_LOOK = 0.1, 5.0
# How long the user's process may take to report its stack, and killed processes to exit.
_STACK_SECONDS, _GONE_SECONDS = 0.5, 5.0
_PAUSE_SECONDS = 0.05  # longer than it takes between two words
_PIECE_BYTES, _LONGEST_STACK_BYTES = 65_536, 1_000_000
_KILLED_CODE = 128  # plus the signal's number, as in a shell


class Limits(NamedTuple):
    """The limits of a trace."""

    seconds: int
    memory_bytes: int


def watched(work: Callable[[Board], str], limits: Limits) -> str:
    """Return what the work returned in a subprocess, or a message about what ended the subprocess."""
    board, memory, (stack, stack_end) = Board(), Memory(), os.pipe()
    os.set_blocking(stack_end, False)
    adopt_orphans()
    die_with_parent = dying_with_parent()

    def set_apart() -> None:
        die_with_parent()
        _set_apart(stack_end, limits.memory_bytes)

    child = os.fork()
    if not child:
        _live(work, board, set_apart)
    return _Watch(child, board, stack, limits, memory).outcome()


def _live(work: Callable[[Board], str], board: Board, set_apart: Callable[[], None]) -> NoReturn:
    """The body of the subprocess."""
    me = os.getpid()
    try:
        try:
            set_apart()
            outcome = work(board)
        except BaseException as error:  # a bug of MemTune's, or damage that the factory did to Python
            outcome = error_messages.unexpected(error, board.place)
        if os.getpid() == me:
            board.conclude(outcome)
    finally:
        # Exit at once: nothing of the user's may run now, such as a waiting thread or an exit handler.
        os._exit(0)


def _set_apart(stack_end: int, memory_bytes: int) -> None:
    # A session of its own: signals of the factory to its group, or of a terminal to ours, go no further.
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    # Standard output belongs to the message.
    os.dup2(2, 1)
    faulthandler.enable(stack_end, all_threads=False)
    faulthandler.register(stacks.SIGNAL, stack_end, all_threads=False)
    # Not the address space: torch reserves far more than it uses.
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    allowed = memory_bytes if most == resource.RLIM_INFINITY else min(memory_bytes, most)
    resource.setrlimit(resource.RLIMIT_DATA, (allowed, allowed))


class _Watch:
    def __init__(self, child: int, board: Board, stack: int, limits: Limits, memory: Memory) -> None:
        self._has_ended = False
        self._child, self._board, self._stack, self._limits = child, board, stack, limits
        self._memory = memory
        self._signals = Signals()
        self._deadline = time.monotonic() + limits.seconds

    def outcome(self) -> str:
        output = self._output()
        self._end_all()
        return output

    def _output(self) -> str:
        while True:
            ended, status = os.waitpid(self._child, os.WNOHANG)
            if ended:
                self._has_ended = True
                return self._board.outcome or self._ended_with(os.waitstatus_to_exitcode(status))
            if self._signals.received is not None:
                self._end_all()
                sys.exit(_KILLED_CODE + self._signals.received)
            if time.monotonic() > self._deadline:
                return error_messages.late(self._limits.seconds, self._where())
            began = time.monotonic()
            if self._memory.exceeds(self._limits.memory_bytes, descendants(os.getpid())):
                return error_messages.greedy(self._limits.memory_bytes, self._where())
            # On a machine with thousands of processes a look takes a while.
            self._signals.sleep(max(_LOOK_EVERY_SECONDS, _PAUSE_PER_LOOK * (time.monotonic() - began)))

    def _ended_with(self, code: int) -> str:
        # If the exit was no signal, the stack is a child's.
        stack = self._read_stack(0.0) if code < 0 else ""
        return error_messages.of_code(code, error_messages.where(self._board.place, stack))

    def _where(self) -> str:
        """Describe where the subprocess is now, though it may be stuck in a library."""
        self._read_stack(0.0)  # discard a child's stack
        send(stacks.SIGNAL, self._child)
        return error_messages.where(self._board.place, self._read_stack(_STACK_SECONDS))

    def _read_stack(self, seconds: float) -> str:
        """Read what faulthandler writes, until it stops writing."""
        output = b""
        while select.select([self._stack], [], [], _PAUSE_SECONDS if output else seconds)[0]:
            output += os.read(self._stack, _PIECE_BYTES)
            if len(output) > _LONGEST_STACK_BYTES:
                break
        return output.decode(errors="replace")

    def _end_all(self) -> None:
        """Kill everything that the factory started, in any session or process group."""
        if not self._has_ended:
            send(signal.SIGKILL, self._child)  # not every system lists descendants
        deadline = time.monotonic() + _GONE_SECONDS
        # A process with threads still exiting may look dead and yet not be reapable.
        with suppress(ChildProcessError):
            while time.monotonic() < deadline:
                for each in descendants(os.getpid()):
                    send(signal.SIGKILL, each)
                if not os.waitpid(-1, os.WNOHANG)[0]:
                    time.sleep(0.01)
