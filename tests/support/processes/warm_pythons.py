"""Starts Pythons that have imported torch and others already, which takes longer than a small training itself.

They are forked from a process that has imported libraries and done nothing else: `programs/warm_python.py`. A test run
has one for each set of libraries, and for each environment that these have read meanwhile.
"""

from __future__ import annotations

import errno
import hashlib
import marshal
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO

_PROGRAM = Path(__file__).parents[1] / "programs" / "warm_python.py"
MESSAGE_BYTES = 1 << 18
LIBRARIES = (
    "torch",
    "transformers.trainer",
    "transformers.models.auto.modeling_auto",
    "transformers.models.llama.modeling_llama",
    "peft",
    "accelerate",
    "deepspeed",
    # What DeepSpeed imports as it begins to train.
    "deepspeed.runtime.zero.muon.muon_optimizer",
    "deepspeed.ops.op_builder.all_ops",
)
# What traces a model; fake tensors import torch's compiler, which takes longer than many a trace.
TRACING = ("torch", "torch._dynamo", "memtune_runner.tracing")
# What Python, its loader and libraries read as they are imported, by the beginnings of the names.
_READ_AT_IMPORT = ("PYTHON", "LD_", "OMP_", "MKL_", "TORCH", "PYTORCH_", "HF_", "TRANSFORMERS_", "ACCELERATE_", "DS_")
# And what of these only later: it is told to ranks, or set by libraries for what they start.
_READ_LATER = ("TORCHELASTIC_", "TORCHINDUCTOR_CACHE_DIR", "PYTORCH_NVML_BASED_CUDA_CHECK")


class WarmPython:
    """Like the `subprocess.Popen` of `python WORDS...` with one text of what it writes, in a file of its own or a given
    one; its errors may go to another file. Libraries have ``read`` what the environment says, unless told otherwise."""

    def __init__(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        libraries: tuple[str, ...],
        output: IO[bytes] | None = None,
        errors: IO[bytes] | None = None,
        directory: Path | None = None,
        read: tuple[tuple[str, str], ...] | None = None,
    ) -> None:
        self.returncode: int | None = None
        self._output = output or tempfile.TemporaryFile()  # noqa: SIM115  # it is closed by kill()
        self._told, telling = socket.socketpair(type=socket.SOCK_SEQPACKET)
        request = {"words": list(words), "environment": dict(environment), "directory": str(directory or Path.cwd())}
        with telling:
            message = [marshal.dumps(request)]
            written = [each.fileno() for each in (self._output, errors or self._output)]
            forking = parent(libraries, read or read_at_import(environment))
            socket.send_fds(forking, message, [*written, telling.fileno()])
        self.pid = int(self._told.recv(64))

    def wait(self, timeout: float) -> int:
        """Wait for the end, and return the exit code."""
        if self.returncode is None:
            self._told.settimeout(timeout)
            try:
                self.returncode = int(self._told.recv(64))
            except TimeoutError:
                raise subprocess.TimeoutExpired("python", timeout) from None
        return self.returncode

    def communicate(self, timeout: float) -> tuple[str, None]:
        """Wait for the end, and return what was written."""
        self.wait(timeout)
        self._output.seek(0)
        return self._output.read().decode(), None

    def kill(self) -> None:
        """End it if it runs, and close what belongs to it."""
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)
            self._told.settimeout(None)
            self.returncode = int(self._told.recv(64))
        self._told.close()
        self._output.close()


def read_at_import(environment: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """What of an environment a Python must have had as it imported libraries."""
    return tuple(
        (name, each)
        for name, each in sorted(environment.items())
        if name.startswith(_READ_AT_IMPORT) and not name.startswith(_READ_LATER)
    )


@cache
def parent(
    libraries: tuple[str, ...], environment: tuple[tuple[str, str], ...], python: str = sys.executable
) -> socket.socket:
    """Return the socket for requests of the process that forks those with these libraries.

    All workers of a test run share it: whoever asks first starts it, and it ends with the run.
    """
    owner = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
    key = hashlib.sha256(repr((libraries, environment, python)).encode()).hexdigest()[:16]
    name = f"\0memtune-warm-{owner}-{key}"  # of no file, so that it goes with the process
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as theirs:
        try:
            theirs.bind(name)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
        else:
            _start(theirs, owner, libraries, environment, python)
    ours = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    ours.connect(name)
    return ours


def _start(
    requests: socket.socket,
    owner: int,
    libraries: tuple[str, ...],
    environment: tuple[tuple[str, str], ...],
    python: str,
) -> None:
    others = {name: each for name, each in os.environ.items() if not name.startswith(_READ_AT_IMPORT)}
    process = subprocess.Popen(
        [python, str(_PROGRAM), str(requests.fileno()), str(owner), *libraries],
        # Chosen by the runner before DeepSpeed is imported, which guesses otherwise.
        env={**others, "DS_ACCELERATOR": "cpu", **dict(environment)},
        stdin=subprocess.DEVNULL,
        pass_fds=[requests.fileno()],
    )
    # It is no worker's to wait for, and outlives the one that started it.
    process.returncode = 0
