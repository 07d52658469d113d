"""Forks the runs of several plans from one Python on the emulated GPU that has imported the script's first libraries.

It is started as a rank is, and does what a rank does up to its script. Then it imports what the script imports first
and serves requests of `memtune emulate JOB.yaml`: for each it forks a launcher, and from that its rank. Those that
import DeepSpeed come from a fork that has imported what DeepSpeed needs, too. A rank whose environment is not the one
in which the libraries were imported becomes a new Python. Nothing is forked if the imports left something behind that
forks would share.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import IO, Any, NoReturn

from memtune.wire import environment
from memtune.wire.frameworks import FRAMEWORKS
from memtune_runner import worker
from memtune_runner.command import accelerate_options, first_imports, run_target
from memtune_runner.command.command import Kind
from memtune_runner.emulated.process import EmulatedProcess, can_compile
from memtune_runner.launch import main as launch
from memtune_runner.launch import process_trees
from memtune_runner.launch.workers import Process
from memtune_runner.rank import imported_copies
from memtune_runner.rank.imports import ImportWatch
from memtune_runner.rank.ranks import Rank
from memtune_runner.rank.settings import SettingsError, read_settings

_MESSAGE_BYTES = 1 << 18
# Output, errors, and the descriptor that reports its process id and exit code.
_DESCRIPTORS = 3
# Where KIND TARGET ARGUMENTS... begin in the command line of a rank.
_BEHIND_PYTHON = len(sys.orig_argv) - len(sys.argv) + 1
# Modules that DeepSpeed imports as it begins to train: with a part of torch's compiler, for a second or two.
_DEEPSPEED = (
    "deepspeed",
    "deepspeed.runtime.zero.muon.muon_optimizer",
    "deepspeed.compile.backend",
    "deepspeed.module_inject.auto_ep_layer",
)
# Variables that differ between two runs of a job, beside MemTune's own.
_OF_RUN = ("MASTER_PORT", "TORCHELASTIC_RUN_ID")
# The runner's own modules that import torch, which every rank needs.
_OURS = ("memtune_runner.watch.hooks", "memtune_runner.watch.watch", "memtune_runner.emulated.statistics")


def main(words: Sequence[str]) -> int:
    """Serve requests for runs of ``KIND TARGET ARGUMENTS...`` at the socket that the environment names."""
    place = Path(os.environ.pop(environment.EMULATED_FORKS))

    def serve() -> NoReturn:
        try:
            libraries = Libraries(words)
        except BaseException:  # the script itself will show it
            os._exit(1)
        if libraries.can_be_shared:
            _serve(_connected(place), libraries)
        os._exit(0)

    return worker.main(words, serve)


class Libraries:
    """The libraries imported in this process, and the environment in which they were."""

    def __init__(self, words: Sequence[str]) -> None:
        self._directory, self._environment = Path.cwd(), dict(os.environ)
        self._reads: set[str] = set()
        self._changes: dict[str, str | None] = {}
        self._process = EmulatedProcess(Rank.read(os.environ).world)
        self.have_accelerate = self.have_deepspeed = False
        os.environ.update({**accelerate_options.variables(os.environ), **os.environ})
        self._add(lambda: first_imports.carry_out(Kind(words[0]), words[1]))
        self.have_accelerate = "accelerate" in sys.modules

    def add_deepspeed(self) -> None:
        """Import what DeepSpeed imports as it begins to train."""
        self.have_deepspeed, read = True, set(self._reads)
        self._add(_import_deepspeed)
        self.can_be_shared &= self._reads == read

    def _add(self, carry_out: Callable[[], None]) -> None:
        descriptors = _entries("fd")
        imported: list[str] = []
        imports = ImportWatch()
        imports.when_any_is_imported(lambda module: imported.append(module.__name__))
        if "torch" not in sys.modules:
            imports.when_imported("torch", self._process.torch_imported)
        imports.install()
        gc.disable()  # imports leave no garbage worth looking for, which takes a fifth of their time
        with _without_run(self._reads):
            carry_out()
        imports.remove()
        imported_copies.find([name for name in imported if name in sys.modules])
        self._changes = {
            name: os.environ.get(name)
            for name in {*os.environ, *self._environment}
            if os.environ.get(name) != self._environment.get(name)
        }
        self.can_be_shared = _is_untouched() and _entries("fd") == descriptors
        if self.can_be_shared:
            for name in _OURS:
                import_module(name)
        self._process.inherit()
        gc.collect()
        gc.freeze()  # no fork looks through it, and so none has to copy it
        gc.enable()

    def fit(self, words: Sequence[str]) -> bool:
        """Whether a process with this command line, directory and environment would import them in the same way."""
        script = _BEHIND_PYTHON + 2
        return (
            list(words[:script]) == sys.orig_argv[:script]
            and Path.cwd() == self._directory
            and _of_job(os.environ) == _of_job(self._environment)
            and not any(name in os.environ for name in self._reads)
            and not sys.modules["torch"].cuda._is_in_bad_fork()
        )

    def adopt(self) -> None:
        """Change the environment as their imports did."""
        for name, value in self._changes.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _import_deepspeed() -> None:
    for name in _DEEPSPEED:
        with suppress(ImportError):  # not every release has all
            import_module(name)


def _is_of_run(name: str) -> bool:
    return name in _OF_RUN or (name.startswith(environment.PREFIX) and name != environment.EMULATED_GPU)


def _of_job(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if not _is_of_run(name)}


@contextmanager
def _without_run(reads: set[str]) -> Iterator[None]:
    """Take the variables of the run out of the environment, and note which of them are looked up."""
    hidden = {name: os.environ.pop(name) for name in list(os.environ) if _is_of_run(name)}
    kind: Any = type(os.environ)
    plain = kind.__getitem__

    def noted(variables: Any, name: str) -> Any:
        if _is_of_run(name):
            reads.add(name)
        return plain(variables, name)

    kind.__getitem__ = noted
    try:
        yield
    finally:
        kind.__getitem__ = plain
        os.environ.update(hidden)


def _is_untouched() -> bool:
    """Whether torch was imported, nothing was begun that a fork would lack, and nothing that the hooks refuse."""
    torch: Any = sys.modules.get("torch")
    integration = read_settings(os.environ).integration
    refused = [name for each in FRAMEWORKS if integration not in each.integrations for name in each.modules]
    return (
        torch is not None
        and can_compile()
        and not torch.cuda.is_initialized()
        and len(_entries("task")) == 1
        and not any(name in sys.modules for name in refused)
    )


def _entries(directory: str) -> set[str]:
    return {each.name for each in Path("/proc/self", directory).iterdir()}


def _connected(place: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    near = os.open(place.parent, os.O_RDONLY)
    connection.connect(f"/proc/self/fd/{near}/{place.name}")  # the whole path may be too long for a socket
    os.close(near)
    return connection


def _serve(connection: socket.socket, libraries: Libraries) -> NoReturn:
    """Fork a launcher for each request; several may run at a time."""
    deepspeed: socket.socket | None = None
    may_add_deepspeed = not libraries.have_deepspeed
    while True:
        message, descriptors, _, _ = socket.recv_fds(connection, _MESSAGE_BYTES, _DESCRIPTORS)
        if not message:
            os._exit(0)  # with which all that it has forked end
        request = json.loads(message)
        # accelerate imports DeepSpeed under each plan, to unwrap models.
        is_deepspeeds = libraries.have_accelerate or _trains_with_deepspeed(request["environment"])
        if may_add_deepspeed and is_deepspeeds:
            may_add_deepspeed, deepspeed = False, _forked_with_deepspeed(libraries, connection.fileno(), *descriptors)
        if deepspeed and is_deepspeeds:
            socket.send_fds(deepspeed, [message], descriptors)
        elif _is_fork(connection.fileno(), *([deepspeed.fileno()] if deepspeed else [])):
            _follow(request, descriptors, libraries)
        for each in descriptors:
            os.close(each)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _trains_with_deepspeed(variables: Mapping[str, str]) -> bool:
    try:
        return read_settings(variables).plan.sharding.backend == "deepspeed"
    except SettingsError:  # which the launcher reports
        return False


def _forked_with_deepspeed(libraries: Libraries, *others: int) -> socket.socket | None:
    """Fork a process that serves requests of plans with DeepSpeed, without ``others`` of the descriptors here; return
    the way to it, or None if it cannot."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if _is_fork(ours.fileno(), *others):
        try:
            libraries.add_deepspeed()
        except BaseException:  # the script itself will show it
            os._exit(1)
        if libraries.can_be_shared:
            theirs.send(b"served")
            _serve(theirs, libraries)
        os._exit(0)
    theirs.close()
    return ours if ours.recv(64) else None


def _is_fork(*others: int) -> bool:
    """Fork, and return whether this is the new process, which ends with its parent and closes these descriptors."""
    prepare = process_trees.dying_with_parent()
    if os.fork():
        return False
    prepare()
    for each in others:
        os.close(each)
    return True


def _follow(request: Mapping[str, Any], descriptors: Sequence[int], libraries: Libraries) -> NoReturn:
    """Fork a launcher, and tell its process and its exit code."""
    *outputs, telling = descriptors
    prepare = process_trees.dying_with_parent()
    if (child := os.fork()) == 0:
        prepare()
        os.close(telling)
        _launch(request, outputs, libraries)
    for each in outputs:
        os.close(each)
    with socket.socket(fileno=telling) as told, suppress(BrokenPipeError):
        told.send(str(child).encode())
        _, status = os.waitpid(child, 0)
        told.send(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def _launch(request: Mapping[str, Any], descriptors: Sequence[int], libraries: Libraries) -> NoReturn:
    """Run a launcher in this process."""
    os.setsid()
    _write_to(*descriptors)
    os.chdir(request["directory"])
    _replace_environment(request["environment"])
    rank = ForkedRank(libraries)
    code = launch.main(request["words"], rank.start)
    os._exit(code)


class ForkedRank:
    """The process of a rank, forked before the launcher has begun. It waits for its command line."""

    def __init__(self, libraries: Libraries) -> None:
        self.stdout: IO[bytes] | None = None
        self.stderr: IO[bytes] | None = None
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        prepare = process_trees.dying_with_parent()
        self.pid = os.fork()
        if self.pid == 0:
            self._ours.close()
            prepare()
            _become_rank(theirs, libraries)
        theirs.close()

    def start(self, words: list[str], variables: Mapping[str, str]) -> Process:
        """Give it the command line and environment; the only rank of an emulated run."""
        (read_output, output), (read_errors, errors) = os.pipe(), os.pipe()
        with self._ours:
            message = json.dumps({"words": words, "environment": dict(variables)}).encode()
            socket.send_fds(self._ours, [message], [output, errors])
        os.close(output)
        os.close(errors)
        self.stdout, self.stderr = os.fdopen(read_output, "rb", 0), os.fdopen(read_errors, "rb", 0)
        return self

    def wait(self) -> int:
        """Wait for its end and return its exit code."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def _become_rank(told: socket.socket, libraries: Libraries) -> NoReturn:
    """Run the worker of a rank in this process, or as a new Python where the libraries do not fit."""
    with told:
        message, descriptors, _, _ = socket.recv_fds(told, _MESSAGE_BYTES, 2)
    if not message:
        os._exit(0)
    os.setsid()
    _write_to(*descriptors)
    request = json.loads(message)
    words = request["words"]
    _replace_environment(request["environment"])

    def ready() -> None:
        if not libraries.fit(words):
            os.execvpe(words[0], words, request["environment"])
        libraries.adopt()

    try:
        code = worker.main(words[_BEHIND_PYTHON:], ready)
    except SystemExit as error:
        code = run_target.exit_code(error)
    # As Python ends, but without taking each library apart.
    threading._shutdown()  # type: ignore[attr-defined]  # as a process of multiprocessing ends
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _write_to(output: int, errors: int) -> None:
    os.dup2(output, 1)
    os.dup2(errors, 2)
    os.close(output)
    os.close(errors)


def _replace_environment(variables: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(variables)
