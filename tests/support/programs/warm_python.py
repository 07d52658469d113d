"""Forks Pythons that have imported libraries already: `warm_python.py DESCRIPTOR OWNER MODULE...`.

Each message on the socket is a command line with its environment and directory, and brings three descriptors: two for
the output, one to tell the process id and the exit code on. A child is killed when the other end of the latter is
closed. Ends with the owner, a process. MemTune itself is imported from where the environment of a child says, by a
process for all children that find it there; its hooks also reach what a library imported here has copied from a hooked
module.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import marshal
import os
import runpy
import select
import signal
import socket
import sys
import threading
import weakref
from contextlib import suppress
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from memtune_runner.rank.imports import ImportWatch

MESSAGE_BYTES = 1 << 18
# The modules with functions that a hook replaces and that other modules import by name.
_COPIED_FROM = (
    "accelerate.data_loader",
    "lightning.pytorch.trainer.connectors.data_connector",
    "safetensors",
    "safetensors.torch",
)
_OWN = ("memtune", "memtune_runner", "memtune_operator", "memtune_cli")
# What launchers and ranks import of these, and ranks with torch besides.
_WITHOUT_TORCH = ("memtune_runner.launch.main", "memtune_runner.worker")
_WITH_TORCH = (
    "memtune_runner.watch.hooks",
    "memtune_runner.watch.watch",
    "memtune_runner.virtual.gpu",
)
# A process for each place of MemTune takes some 30 MiB, and many a test installs a runner of its own.
_MOST_HOMES = 8
_there_before: dict[str, set[str]] = {}
# By module and function: where other modules have a copy of it.
_copies: dict[tuple[str, str], list[tuple[ModuleType, str]]] = {}


def import_all(names: list[str]) -> None:
    """Import modules, and remember which ones were there before those that are copied from."""
    imports = ImportWatch()
    for name in _COPIED_FROM:
        imports.when_imported(name, _remember)
    imports.install()
    for name in names:
        importlib.import_module(name)
    imports.remove()
    if "deepspeed" in names:
        # It compiles a program to learn this, once in each process that asks; the runner does.
        _ = sys.modules["deepspeed.ops"].__compatible_ops__
    if "transformers.conversion_mapping" in sys.modules:
        # It compiles hundreds of patterns once it is asked, as in each process that saves a model.
        sys.modules["transformers.conversion_mapping"].get_checkpoint_conversion_mapping("llama")
    _find_copies()
    for each in weakref.finalize._registry:  # type: ignore[attr-defined]  # libraries take as long to be taken apart
        each.atexit = False


def _remember(imported: ModuleType) -> None:
    specs = {name: getattr(each, "__spec__", None) for name, each in sys.modules.items()}
    is_there = {name for name, spec in specs.items() if not getattr(spec, "_initializing", False)}
    _there_before[imported.__name__] = is_there


def _find_copies() -> None:
    originals: dict[int, list[tuple[str, str]]] = {}
    for owner in _there_before:
        for name, value in vars(sys.modules[owner]).items():
            if callable(value):
                originals.setdefault(id(value), []).append((owner, name))
    for known, module in list(sys.modules.items()):
        for copy, value in vars(module).items():
            for owner, name in originals.get(id(value), ()):
                if known not in _there_before[owner]:
                    _copies.setdefault((owner, name), []).append((module, copy))


def replace_copies() -> None:
    """Let what replaces a function replace its copies, as if they were made afterwards."""
    from memtune_runner.rank.patches import Patches

    inherited = Patches.replace

    def replace(patches: Patches, owner: Any, name: str, value: Any) -> None:
        original = getattr(owner, name, None)
        inherited(patches, owner, name, value)
        for each, copy in _copies.get((getattr(owner, "__name__", ""), name), ()):
            if getattr(each, copy, None) is original:
                inherited(patches, each, copy, value)

    Patches.replace = replace  # type: ignore[method-assign, assignment]  # of one test


class _Child(NamedTuple):
    """A forked process, and the descriptor to tell its end on."""

    pid: int
    told: int

    def kill(self) -> None:
        for kill in (os.killpg, os.kill):  # it may not be in a group of its own yet
            with suppress(ProcessLookupError):
                kill(self.pid, signal.SIGKILL)

    def wait(self) -> None:
        """Wait for its end, and tell its exit code."""
        self.tell(os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]))
        os.close(self.told)

    def tell(self, number: int) -> None:
        with suppress(BrokenPipeError):  # who wanted to know may be gone already
            os.write(self.told, str(number).encode())


def next_request(requests: socket.socket, owner: int) -> dict[str, Any]:
    """Serve requests, and return the request that this process was forked for."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the processes that fork end with the owner
    ended = _process(owner)
    forking: dict[tuple[str | None, ...], socket.socket] = {}
    while True:
        if ended in select.select([requests.fileno(), ended], [], [])[0]:
            os._exit(0)
        message, descriptors, _, _ = socket.recv_fds(requests, MESSAGE_BYTES, 3)
        homes = _homes(marshal.loads(message))
        if homes in forking:
            forking[homes] = forking.pop(homes)  # behind those that were used less recently
        else:
            if len(forking) == _MOST_HOMES:
                forking.pop(next(iter(forking))).close()
            forking[homes], theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
            if os.fork() == 0:
                for each in (requests, *forking.values()):
                    each.close()
                for number in descriptors:
                    os.close(number)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _import_own([each for each in homes if each is not None])
                return _next_child(theirs, ended)
            theirs.close()
        socket.send_fds(forking[homes], [message], descriptors)
        for number in descriptors:
            os.close(number)


def _process(owner: int) -> int:
    try:
        return os.pidfd_open(owner)
    except ProcessLookupError:
        os._exit(0)


def _homes(request: dict[str, Any]) -> tuple[str | None, ...]:
    """Where the Python of a request finds each of MemTune's packages."""
    own = [each for each in request["environment"].get("PYTHONPATH", "").split(os.pathsep) if each]
    places = [*(Path(request["directory"], each) for each in own), *map(Path, sys.path[1:])]
    return tuple(next((str(each) for each in places if (each / name).is_dir()), None) for name in _OWN)


def _import_own(homes: list[str]) -> None:
    """Import what nearly each child needs of MemTune, from there instead of where the server did."""
    for name in [name for name in sys.modules if name.partition(".")[0] in _OWN]:
        del sys.modules[name]
    before, sys.path[:] = sys.path[:], [*homes, *sys.path]
    gc.disable()
    asked = [name for name in sys.argv[3:] if name.partition(".")[0] in _OWN]
    for name in (*_WITHOUT_TORCH, *(_WITH_TORCH if "torch" in sys.modules else ()), *asked):
        with suppress(Exception):  # a child that needs it will tell
            importlib.import_module(name)
    sys.path[:] = before
    gc.freeze()
    gc.enable()


def _next_child(requests: socket.socket, owner: int) -> dict[str, Any]:
    """Fork a child for each request, tell how it ends, and kill it when nobody wants to know."""
    running: dict[int, _Child] = {}
    asking = [requests.fileno()]
    while asking or running:
        told = [child.told for child in running.values()]
        ready, _, _ = select.select([*asking, owner, *running, *told], [], [])
        _forget_ended(running, ready, owner in ready)
        if owner in ready:
            os._exit(0)
        if requests.fileno() in ready:
            message, descriptors, _, _ = socket.recv_fds(requests, MESSAGE_BYTES, 3)
            if not message:  # another place is asked for more
                asking.clear()
                continue
            output, errors, own = descriptors
            if (pid := os.fork()) == 0:
                requests.close()
                for each in (owner, own, *running, *(child.told for child in running.values())):
                    os.close(each)
                _write_to(output, errors)
                request: dict[str, Any] = marshal.loads(message)
                return request
            for each in {output, errors}:
                os.close(each)
            child = running[os.pidfd_open(pid)] = _Child(pid, own)
            child.tell(pid)
    os._exit(0)


def _forget_ended(running: dict[int, _Child], ready: list[int], are_unwanted: bool) -> None:
    for ended, child in list(running.items()):
        if is_unwanted := are_unwanted or child.told in ready:
            child.kill()
        if is_unwanted or ended in ready:
            child.wait()
            del running[ended]
            os.close(ended)


def _write_to(output: int, errors: int) -> None:
    """Become the leader of a session that writes there."""
    os.setsid()
    os.dup2(output, 1)
    os.dup2(errors, 2)
    for each in {output, errors}:
        os.close(each)


def become(words: list[str], environment: dict[str, str], directory: str, python: str = sys.executable) -> None:
    """Run `python WORDS...` in this process, as a Python that was started by this path."""
    os.environ.clear()
    os.environ.update(environment)
    process = ctypes.CDLL(None)
    if hasattr(process, "emulated_configure"):  # a launcher's Python has no GPU
        process.emulated_configure()
    os.chdir(directory)
    own = [each for each in environment.get("PYTHONPATH", "").split(os.pathsep) if each]
    is_module = words[0] == "-m"
    sys.argv, sys.orig_argv, sys.executable = words[1:] if is_module else words, [python, *words], python
    sys.path[:] = dict.fromkeys([*own, *sys.path[1:]])
    if PathFinder.find_spec("sitecustomize", own) is not None:
        sys.modules.pop("sitecustomize", None)  # a parent's own
        # As Python does at its start, when the script's directory is not on the path yet.
        importlib.import_module("sitecustomize")
    sys.path.insert(0, directory if is_module else str(Path(words[0]).parent))
    replace_copies()
    code = _run(sys.argv[0], is_module)
    # As Python ends, but without taking each library apart, which takes longer than many a script.
    threading._shutdown()  # type: ignore[attr-defined]  # as a process of multiprocessing ends
    atexit._run_exitfuncs()
    for stream in filter(None, (sys.stdout, sys.stderr)):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _run(script: str, is_module: bool) -> int:
    """Run a script or module, and return its exit code."""
    try:
        if is_module:
            runpy.run_module(script, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(script, run_name="__main__")
    except KeyboardInterrupt:
        raise  # Python ends by the signal
    except SystemExit as ended:
        if isinstance(ended.code, int | None):
            return (ended.code or 0) & 0xFF
        print(ended.code, file=sys.stderr)
        return 1
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    return 0


if __name__ == "__main__":
    gc.disable()  # imports leave no garbage worth looking for, which takes a fifth of their time
    import_all(sys.argv[3:])
    # Not to be looked through, and so not to be copied, by each child.
    gc.collect()
    gc.freeze()
    gc.enable()
    become(**next_request(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])))
