"""The processes of one node's ranks: started, watched and ended together.

torch's own agent is not used for this. It reads what workers print from files that grow as long as the run goes on, and
tears unfinished lines; it gives workers 30 s to end where a run has 5 (its default, which older versions do not let
change); and of a failure on another node it learns only by that of its own workers. Its environment and its store are
kept, so scripts see no difference.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from memtune_runner.launch import processes
from memtune_runner.launch.output import Output
from memtune_runner.rank import stacks
from memtune_runner.rank.bad_input import BadInputError
from memtune_runner.rank.ranks import Rank

_KILL_SECONDS = 1.0


@dataclass
class Worker:
    """One rank's process. ``exit_code`` is 128+N for one that signal N ended, as a shell would say it."""

    rank: Rank
    process: subprocess.Popen[bytes]
    is_program: bool
    exit_code: int | None = None
    ended_at: float | None = None
    was_stopped: bool = False

    @property
    def has_failed(self) -> bool:
        return bool(self.exit_code)


class Workers:
    """All ranks of this node, and the one thread that passes on what they print."""

    def __init__(self) -> None:
        self.all: list[Worker] = []
        self._output = Output()

    def start(self, rank: Rank, words: list[str], variables: Mapping[str, str], is_program: bool) -> None:
        """Start one rank. It leads a session of its own, so that all it starts can be told from the others."""
        process = _started(words, variables)
        assert process.stdout is not None
        assert process.stderr is not None
        for source, target in ((process.stdout, sys.stdout), (process.stderr, sys.stderr)):
            # The pipe's end is the output's from here on; Popen must not close it behind its back.
            self._output.add(rank.rank, os.dup(source.fileno()), target.buffer)
            source.close()
        self.all.append(Worker(rank, process, is_program))

    def pass_on_output(self) -> None:
        """Begin to pass on what the ranks print, once all are started."""
        self._output.start()

    def poll(self) -> None:
        """Note which workers have ended, and let orphans that ended be forgotten by the kernel."""
        own = {worker.process.pid: worker for worker in self.all}
        while (ended := _waiting_to_be_asked()) is not None:
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
        """Wait for the workers to end, no longer than this, or until it is enough."""
        deadline = time.monotonic() + seconds
        self.poll()
        while self.running and time.monotonic() < deadline and not is_enough():
            time.sleep(0.02)
            self.poll()

    def ask_to_end(self, signal_number: int) -> None:
        """Pass a signal on: to a worker's main process, to all processes of a program, whose script is among them."""
        for worker in self.running:
            if worker.is_program:
                processes.send_to_group(signal_number, worker.process.pid)
            else:
                processes.send(signal_number, worker.process.pid)

    def show_stacks(self, workers: Iterable[Worker]) -> None:
        """Have these ranks print where they stand. Below a shell it is the first that can: loaders are its children."""
        for worker in workers:
            tree = [worker.process.pid, *processes.descendants(worker.process.pid)]
            able = (pid for pid in tree if processes.catches(stacks.SIGNAL, pid))
            if (pid := next(able, None)) is not None:
                processes.send(stacks.SIGNAL, pid)

    def kill(self) -> None:
        """End every process below this one that still runs, workers and whatever they left behind."""
        deadline = time.monotonic() + _KILL_SECONDS
        while (left := processes.descendants(os.getpid())) and time.monotonic() < deadline:
            for pid in left:
                processes.send(signal.SIGKILL, pid)
            time.sleep(0.01)
            self.poll()
        self.poll()
        self._output.drain(_KILL_SECONDS)

    def log(self, rank: Rank) -> str:
        """The last lines that a rank printed."""
        return self._output.tail(rank.rank)


def _started(words: list[str], variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            words,
            env=dict(variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
            preexec_fn=processes.dying_with_parent(),  # it imports nothing, so other threads do not matter
        )
    except OSError as error:  # a script without its first line, a program for another processor
        raise BadInputError(
            f"{words[0]} cannot be started: {error.strerror}; correct the command or the image"
        ) from None


def _waiting_to_be_asked() -> int | None:
    """A child that has ended and still waits to be asked for its exit code; it stays so."""
    try:
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return found.si_pid if found else None
