"""Real launches on this machine of an installed runner, whose hooks are replaced by a stand-in without torch."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from memtune.wire.environment import EMULATED_GPU
from memtune.wire.report import LOG_MARK, Report, read_report
from memtune_operator.pods.bootstrap import BOOTSTRAP, RUNNER_DIRECTORY
from memtune_runner import install

TIMEOUT_SECONDS = 150

# Keeps the real one's promises: it does not touch the exception, and reports at the script's end.
_STAND_IN = """
import os
from contextlib import contextmanager
from memtune.wire.report import Memory, Report
from memtune_runner.rank import failure_causes, ranks

@contextmanager
def watching(settings, rank, must_train=True):
    code = failure_causes.ProcessEnd(failure_causes.Ending.SUCCEEDED, 0, "")
    try:
        yield
    except BaseException as error:
        code = failure_causes.of_exception(error)
        raise
    finally:
        steps = int(os.environ.get("STEPS", 3))
        memory = Memory(peak_reserved_bytes=1000 + rank.rank)
        report = Report(code.ending, code.exit_code, rank=rank.rank, steps=steps, memory=memory, message=code.message)
        ranks.write_rank_report(ranks.own_directory(os.environ), rank, report)
"""


def install_runner(directory: Path) -> Path:
    """The runner as in a pod, with the stand-in for its hooks."""
    install.install(directory)
    package = directory / "memtune_runner"
    (package / "watch").mkdir(exist_ok=True)
    (package / "watch" / "__init__.py").write_text(_STAND_IN)
    return directory


def wait_for(launch: Launch, path: Path) -> None:
    """Wait until a script of this launch has created a file."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not path.exists():
        assert launch.process.poll() is None, launch.end().stderr
        assert time.monotonic() < deadline
        time.sleep(0.02)


def own_python() -> str:
    """The command that starts this Python, whose directory is first on the path: not every machine has a `python`."""
    return Path(sys.executable).name


def free_port() -> int:
    """A port that is free, and that no outgoing connection takes before a rank listens there: those are above 32767.

    Above 29999 are the ports of Kubernetes' services.
    """
    while True:
        port = random.randrange(20_000, 29_000)
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port


@dataclass
class Launch:
    """One launcher's process and its files."""

    process: subprocess.Popen[str]
    directory: Path
    stdout: str = ""
    stderr: str = ""
    exit_code: int = 0

    def end(self) -> Launch:
        """Wait for the end, which is never long."""
        try:
            self.stdout, self.stderr = self.process.communicate(timeout=TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.terminate()  # a killed launcher could not end what it started
            self.stdout, self.stderr = self.process.communicate()
            raise AssertionError(f"the launch did not end:\n{self.stdout}\n{self.stderr}") from None
        self.exit_code = self.process.returncode
        return self

    @property
    def report(self) -> Report:
        """The termination message's report, after checking that file and log have the same."""
        marked = [line.removeprefix(LOG_MARK) for line in self.stdout.splitlines() if line.startswith(LOG_MARK)]
        assert len(marked) == 1, self.stdout + self.stderr
        report = read_report((self.directory / "termination-log").read_bytes())
        whole = read_report((self.directory / "report.json").read_bytes())
        assert read_report(marked[0]) == whole
        assert (whole.ending, whole.exit_code, whole.rank) == (report.ending, report.exit_code, report.rank)
        assert report.exit_code == self.exit_code
        return report


@dataclass
class Place:
    """A place for launches: an installed runner, a directory for their files, and the Python of a warm environment.

    Without the latter, every Python starts anew, as in a pod.
    """

    runner: Path
    directory: Path
    python: str | None = None

    def script(self, text: str, name: str = "train.py") -> str:
        """Write a script and return its path."""
        path = self.directory / name
        path.write_text(text)
        return str(path)

    def start(
        self, *words: str, ranks: int = 1, node: int = 0, nodes: int = 1, variables: Mapping[str, str] | None = None
    ) -> Launch:
        """Start a launcher as the operator's command does; an empty variable is unset."""
        files = self.directory / f"node-{node}"
        files.mkdir(exist_ok=True)
        environment = {
            "MEMTUNE_PLAN": "fp32-ddp-none-mb1x1",
            "MEMTUNE_RUN": "llama-train-0",
            "MEMTUNE_RUN_KIND": "train",
            "MEMTUNE_ATTEMPT": "0",
            "MEMTUNE_GLOBAL_BATCH": str(ranks * nodes),
            "MEMTUNE_SEQUENCE_LENGTH": "8",
            "MEMTUNE_GPUS_PER_NODE": str(ranks),
            "MEMTUNE_NODES": str(nodes),
            "MEMTUNE_NODE_RANK": str(node),
            "MEMTUNE_DEVICE": "virtual",
            "MEMTUNE_GPU_MEMORY_BYTES": "1000000",
            "MEMTUNE_RENDEZVOUS_SECONDS": str(TIMEOUT_SECONDS),
            "MEMTUNE_REPORT_PATH": str(files / "report.json"),
            "MEMTUNE_TERMINATION_MESSAGE_PATH": str(files / "termination-log"),
            **(variables or {}),
        }
        begin = [sys.executable, "-c", BOOTSTRAP.replace(RUNNER_DIRECTORY, str(self.runner))]
        if self.python is not None:
            begin = [self.python, "-m", "memtune_runner"]  # what the other becomes, with the same path
            own = environment.get("PYTHONPATH", "")
            environment["PYTHONPATH"] = os.pathsep.join([str(self.runner), *filter(None, [own])])
        process = subprocess.Popen(
            [*begin, "launch", "--", *words],
            env={**_environment(begin[0]), **{name: value for name, value in environment.items() if value}},
            cwd=self.directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        return Launch(process, files)

    def run(self, *words: str, ranks: int = 1, variables: Mapping[str, str] | None = None) -> Launch:
        """Launch on one node and wait for the end."""
        return self.start(*words, ranks=ranks, variables=variables).end()


def _environment(python: str) -> dict[str, str]:
    """This machine's variables, with this Python first, and without those of other tests.

    An emulated GPU is this machine's as a real one is, with what every Python has on its path there.
    """
    apart = ("MEMTUNE_", "PYTHON")
    own = {name: each for name, each in os.environ.items() if not name.startswith(apart)}
    if EMULATED_GPU in os.environ:
        places = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        entered = [each for each in places if each.endswith("emulated/enter")]
        own |= {EMULATED_GPU: os.environ[EMULATED_GPU], "PYTHONPATH": os.pathsep.join(entered)}
    return {**own, "PATH": f"{Path(python).parent}{os.pathsep}{own['PATH']}"}
