"""The `python` of a warm environment: forks what is listed here, such as `memtune`, launchers and ranks, from a Python
that has imported libraries, and starts everything else anew.

Runs without site-packages, and imports only what is built in, which halves its time; the directory above has the socket
and the path of the real Python.
"""

import _signal  # type: ignore[import-not-found]  # it has no types
import _socket
import marshal
import os
import sys

_SCRIPTS = (
    "/memtune_runner/enter/run_worker.py",
    "/tests/support/programs/watched_worker.py",
    "/tests/support/runs/engine_ranks.py",
    "bench/gpu_emulated.py",
    "bench/gpu_measure.py",
    "bench/gpu_predictions.py",
    "bench/gpu_properties.py",
    "bench/gpu_truth.py",
    "dev/gpu_day/constants.py",
    "dev/gpu_day/machine.py",
)
_MODULES = (
    ["memtune_cli.main"],
    ["memtune_runner", "install"],
    ["memtune_runner", "launch"],
    ["memtune_runner", "trace"],
    ["memtune_runner", "emulated"],
    ["memtune_runner.checkpoints.convert"],
    ["pytest", "-p", "no:cacheprovider"],  # as a GPU day calls it
)


def _is_forked(words: list[str]) -> bool:
    if words[:1] == ["-m"]:
        return any(words[1 : 1 + len(each)] == each for each in _MODULES)
    return bool(words) and words[0].endswith(_SCRIPTS)


def _real(words: list[str]) -> None:
    """Become the real Python, which calls itself by our path and so finds the same packages."""
    with open(os.path.join(_environment, "real")) as file:  # noqa: PTH118, PTH123  # pathlib takes longer than the rest
        os.execv(file.read(), [sys.argv[0], *words])


def _forked(words: list[str]) -> None:
    """Ask for a process, pass signals on to it, and end as it ends."""
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    connection.connect(os.path.join(_environment, "socket"))  # noqa: PTH118  # as above
    request = {
        "words": words,
        "environment": dict(os.environ),
        "directory": os.getcwd(),  # noqa: PTH109  # as above
        "python": sys.argv[0],
    }
    outputs = b"".join(each.to_bytes(4, sys.byteorder) for each in (1, 2))
    connection.sendmsg([marshal.dumps(request)], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, outputs)])
    process = int(connection.recv(64))
    passed_on = (_signal.SIGHUP, _signal.SIGINT, _signal.SIGTERM, _signal.SIGUSR1, _signal.SIGUSR2, _signal.SIGRTMAX)
    for each in passed_on:
        _signal.signal(each, lambda number, _: os.kill(process, number))
    code = int(connection.recv(64))
    if code < 0:
        _signal.signal(-code, _signal.SIG_DFL) if -code != _signal.SIGKILL else None
        os.kill(os.getpid(), -code)
    os._exit(code)


_environment = os.path.dirname(os.path.dirname(sys.argv[0]))  # noqa: PTH120  # as above
if _is_forked(sys.argv[1:]):
    _forked(sys.argv[1:])
_real(sys.argv[1:])
