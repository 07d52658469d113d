"""Environments whose `python` forks the ranks of `memtune run` from a Python that has imported libraries already.

Programs of such an environment, such as `trl`, use it as well. `memtune` itself and the launcher of a single node have
no torch, and are forked from Pythons that have imported what they need. Everything else but what
`programs/warm_start.py` lists starts anew, such as a program up to where the runner takes its place.
"""

from __future__ import annotations

import atexit
import marshal
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from threading import Thread

import emulated_gpu_requirements
import pytest
from warm_pythons import LIBRARIES, MESSAGE_BYTES, TRACING, parent

from memtune.wire.environment import NODES

_START = Path(__file__).parents[1] / "programs" / "warm_start.py"
# What `memtune run` and `memtune emulate` import.
_COMMANDS = (
    "memtune_cli.arguments",
    "memtune_cli.commands.run",
    "memtune_cli.commands.emulate",
    "memtune_operator.local.backend",
    "memtune_operator.reconciler",
    "memtune_operator.search.optuna_search",
)
_ON_EMULATED = tuple(each for each in LIBRARIES if each != "peft")  # which is not there
# What a Python on the emulated GPU reads as it imports torch, by the beginnings of the names, and what of these only
# later: the emulation sets the first after the import, and torch reads the others before it first allocates.
_READ_ON_EMULATED = ("LD_", "TRITON_", "OMP_", "PYTORCH_")
_READ_LATER = ("TRITON_CACHE_DIR", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
_Fork = Callable[[bytes], socket.socket]


@cache
def warm_environment(libraries: tuple[str, ...] = LIBRARIES, packages: tuple[Path, ...] = ()) -> Path:
    """The directory of the environment, which ends with this process; ``packages`` are directories beside its own."""
    variables = read_by_libraries(packages)

    def forking(message: bytes) -> socket.socket:
        without_torch = _without_torch(message)
        return parent(libraries if without_torch is None else without_torch, variables)

    return _environment(Path(sys.executable), packages, forking)


def read_by_libraries(packages: tuple[Path, ...] = ()) -> tuple[tuple[str, str], ...]:
    """The variables that such a Python has as it imports libraries."""
    path = os.pathsep.join(map(str, packages))
    return (("HF_HUB_OFFLINE", "1"), ("OMP_NUM_THREADS", "1"), ("PYTHONPATH", path))


@cache
def warm_emulated() -> Path:
    """The `python` of an environment with the CUDA build of torch; what it forks is on the emulated GPU it names."""
    return _environment(emulated_gpu_requirements.PYTHON, (), _on_emulated) / "bin" / "python"


def _without_torch(message: bytes) -> tuple[str, ...] | None:
    """What to have imported for a request that needs no torch: for `memtune`, or a launcher without others to meet."""
    request = marshal.loads(message)
    if request["words"][:2] == ["-m", "memtune_cli.main"]:
        return _COMMANDS
    if request["words"][:3] == ["-m", "memtune_runner", "install"]:
        return ()
    is_launcher = request["words"][:3] == ["-m", "memtune_runner", "launch"]
    return () if is_launcher and request["environment"].get(NODES, "1") == "1" else None


def _on_emulated(message: bytes) -> socket.socket:
    if (without_torch := _without_torch(message)) is not None:
        return parent(without_torch, (), str(emulated_gpu_requirements.PYTHON))
    told: Mapping[str, str] = marshal.loads(message)["environment"]
    read = {name: told[name] for name in told if name.startswith(_READ_ON_EMULATED) and name not in _READ_LATER}
    # Libraries that ask for the GPU as they are imported do not begin to use it, which would be the end of forks. The
    # threads are what the emulation sets before a script imports torch's compiler.
    own = {
        "DS_ACCELERATOR": "cuda",
        "HF_HUB_OFFLINE": "1",
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }
    return parent(_ON_EMULATED, tuple(sorted((read | own).items())), str(emulated_gpu_requirements.PYTHON))


def _environment(real: Path, packages: tuple[Path, ...], forking: _Fork) -> Path:
    """Make an environment with the packages of this Python; ``forking`` gives the socket for a request."""
    directory = Path(tempfile.mkdtemp(prefix="warm-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    own = real.parents[1]
    python = directory / "bin" / "python"
    python.parent.mkdir()
    shutil.copy(own / "pyvenv.cfg", directory)
    (directory / "lib").symlink_to(own / "lib")
    (directory / "real").write_text(str(real))
    python.write_text(f"#!{sys.executable} -ES\n{_START.read_text()}")
    python.chmod(0o755)
    for place in (*(each / "bin" for each in packages), own / "bin"):
        for program in place.iterdir():
            _copy_program(program, python)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(str(directory / "socket"))
    listening.listen()
    Thread(target=_pass_on, args=(listening, forking), daemon=True).start()
    return directory


@contextmanager
def forked_conversions() -> Iterator[None]:
    """Let the processes that convert checkpoints be forked."""
    python = warm_environment() / "bin" / "python"
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        monkeypatch.setattr(sys, "executable", str(python))
        yield


def launching_python() -> str:
    """The `python` of an environment that forks `memtune`, launchers, and ranks that have no torch."""
    return str(warm_environment(()) / "bin" / "python")


def tracing_python() -> str:
    """The `python` of an environment that forks what traces a model."""
    return str(warm_environment(TRACING) / "bin" / "python")


def training_python() -> str:
    """The `python` that forks the built-in trainer: the same one, so that torch is imported once for both."""
    return tracing_python()


def _copy_program(program: Path, python: Path) -> None:
    """Copy a script of Python, to be run by the environment's."""
    target = python.with_name(program.name)
    with suppress(UnicodeDecodeError, IsADirectoryError):
        first, _, rest = program.read_text().partition("\n")
        if first.startswith("#!") and "python" in first and not target.exists():
            target.write_text(f"#!{python}\n{rest}")
            target.chmod(0o755)


def _pass_on(listening: socket.socket, forking: _Fork) -> None:
    """Pass each request on to the Python that forks, which answers on the connection."""
    while True:
        connection, _ = listening.accept()
        with connection:
            message, descriptors, _, _ = socket.recv_fds(connection, MESSAGE_BYTES, 2)
            if message:
                socket.send_fds(forking(message), [message], [*descriptors, connection.fileno()])
            for each in descriptors:
                os.close(each)
