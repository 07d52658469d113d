"""The worker processes of one node: started, watched and ended together.

This replaces torch's elastic agent. The agent reads output from files that grow for as long as the run lasts, and
splits unfinished lines; it gives workers 30 s to end where a run has 5 (the default, fixed in older versions); and it
learns of another node's failure only through its own workers. The environment and store are those of torchrun, so
scripts see no difference.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import IO, Protocol

from memtune_runner.launch import process_trees
from memtune_runner.launch.output import Output
from memtune_runner.rank import stacks
from memtune_runner.rank.bad_input import BadInputError
from memtune_runner.rank.ranks import Rank

_KILL_SECONDS = 1.0


class Process(Protocol):
    """The used part of a child process: a `subprocess.Popen`, or a fork."""

    pid: int
    stdout: IO[bytes] | None
    stderr: IO[bytes] | None

    def wait(self) -> int:
        """Wait for its end and return its exit code, that after signal N being -N."""


Start = Callable[[list[str], Mapping[str, str]], Process]


@dataclass
class Worker:
    """One rank's process. ``exit_code`` is 128+N after signal N, as in a shell."""

    rank: Rank
    process: Process
    is_program: bool
    exit_code: int | None = None
    ended_at: float | None = None
    was_stopped: bool = False

    @property
    def has_failed(self) -> bool:
        return bool(self.exit_code)


class Workers:
    """All ranks of this node, and the thread that forwards their output."""

    def __init__(self, start: Start) -> None:
        self.all: list[Worker] = []
        self._start = start
        self._output = Output()

    def start(self, rank: Rank, words: list[str], variables: Mapping[str, str], is_program: bool) -> None:
        """Start one rank in a session of its own, so that its descendants can be distinguished from other ranks'."""
        process = self._start(words, variables)
        assert process.stdout is not None
        assert process.stderr is not None
        for source, target in ((process.stdout, sys.stdout), (process.stderr, sys.stderr)):
            # From here on the output thread owns this end of the pipe; Popen must not close it.
            self._output.add(rank.rank, os.dup(source.fileno()), target.buffer)
            source.close()
        self.all.append(Worker(rank, process, is_program))

    def pass_on_output(self) -> None:
        """Start forwarding output, after all ranks have started."""
        self._output.start()

    def poll(self) -> None:
        """Record which workers have ended, and reap orphans."""
        own = {worker.process.pid: worker for worker in self.all}
        while (ended := _unreaped_child()) is not None:
            worker = own.get(ended)
            if worker is None:
                os.waitpid(ended, 0)
                continue
            code = worker.process.wait()
            worker.exit_code = 128 - code if code < 0 else code
            worker.ended_at = time.time()

    @property
    def running(self) -> list[Worker]:
        return [worker for worker in self.all if worker.exit_code is None]

    def wait(self, seconds: float, is_enough: Callable[[], bool]) -> None:
        """Wait for the workers to end, at most this long or until ``is_enough`` returns True."""
        deadline = time.monotonic() + seconds
        self.poll()
        while self.running and time.monotonic() < deadline and not is_enough():
            time.sleep(0.02)
            self.poll()

    def ask_to_end(self, signal_number: int) -> None:
        """Forward a signal to each worker's main process; for a program, to all its processes, since the script is
        among them."""
        for worker in self.running:
            if worker.is_program:
                process_trees.send_to_group(signal_number, worker.process.pid)
            else:
                process_trees.send(signal_number, worker.process.pid)

    def show_stacks(self, workers: Iterable[Worker]) -> None:
        """Have these ranks print their stacks. Below a shell, the first capable process prints: the others are its
        loaders."""
        for worker in workers:
            tree = [worker.process.pid, *process_trees.descendants(worker.process.pid)]
            able = (pid for pid in tree if process_trees.catches(stacks.SIGNAL, pid))
            if (pid := next(able, None)) is not None:
                process_trees.send(stacks.SIGNAL, pid)

    def kill(self) -> None:
        """Kill all descendants: workers and the processes that they left behind."""
        deadline = time.monotonic() + _KILL_SECONDS
        while (left := process_trees.descendants(os.getpid())) and time.monotonic() < deadline:
            for pid in left:
                process_trees.send(signal.SIGKILL, pid)
            time.sleep(0.01)
            self.poll()
        self.poll()
        self._output.drain(_KILL_SECONDS)

    def log(self, rank: Rank) -> str:
        """Return the last lines of a rank's output."""
        return self._output.tail(rank.rank)


def started(words: list[str], variables: Mapping[str, str]) -> Process:
    """Start a process in a session of its own that ends with this one."""
    try:
        return subprocess.Popen(
            words,
            env=dict(variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
            preexec_fn=process_trees.dying_with_parent(),  # it imports nothing, so it is safe with threads
        )
    except OSError as error:  # a script without a shebang, or a binary for another processor
        raise BadInputError(
            f"{words[0]} cannot be started: {error.strerror}; correct the command or the program"
        ) from None


def _unreaped_child() -> int | None:
    """Return a zombie child without reaping it."""
    try:
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return found.si_pid if found else None
