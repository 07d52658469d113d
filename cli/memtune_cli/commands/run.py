"""`memtune run`: prediction, probes, launch and recovery on this machine, with the same job file as on a cluster."""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import importlib.util
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memtune.api.reasons import LAUNCHED, RELAUNCHED, SCRIPT_WARNING, SPEC_CHANGED
from memtune_cli.errors import INTERRUPTED, InputError, installing
from memtune_cli.input.earlier_result import begin_anew, earlier_result
from memtune_cli.input.job_file import read_job
from memtune_cli.input.job_view import JobView
from memtune_cli.input.local_job import with_local_path
from memtune_cli.views.display import Display
from memtune_cli.views.live_page import live_page
from memtune_cli.views.status_diff import saying, without_shown

if TYPE_CHECKING:
    from memtune.controller import JobEvent
    from memtune_operator.backend import Key, Snapshot
    from memtune_operator.local.backend import LocalBackend


def run(arguments: argparse.Namespace) -> int:
    """Run the job to its end; return 0 if it succeeded, 1 if it failed, 130 if interrupted."""
    manifest = read_job(arguments.job)
    _check_extras()
    directory = Path(arguments.state or Path(".memtune") / manifest["metadata"]["name"]).absolute()
    with _alone(directory):
        earlier = earlier_result(manifest, directory)
        _make_checkpoints(manifest, directory)
        install_runner(directory)
        if not earlier:
            _prepare_emulation(manifest, directory)
        # Jobs in the default directory share measurements; a directory chosen by the user is kept separate.
        shared = directory if arguments.state else directory.parent
        return asyncio.run(_drive(manifest, directory, shared, earlier))


def _check_extras() -> None:
    missing = [name for name in ("optuna", "torch") if importlib.util.find_spec(name) is None]
    if missing:
        extras = installing("cli,operator,runner")
        raise InputError(f"memtune run needs {' and '.join(missing)}, not installed here; {extras}")


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Lock the directory: two calls would end each other's runs. The kernel releases the lock of a killed call."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with (directory / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
    except BlockingIOError:
        sentence = f"{directory} is in use by another memtune run; wait for it, or give another --state"
        raise InputError(sentence) from None
    except PermissionError as error:
        raise InputError(f"{error.filename or directory} cannot be written; give another --state") from None


def _make_checkpoints(manifest: dict[str, Any], directory: Path) -> None:
    """Fail before the first probe: a run that cannot save would look like an error in the user's code."""
    from memtune.api import load_job
    from memtune_operator.local.checkpoints import CheckpointPathError, checkpoint_path, make

    try:
        if path := checkpoint_path(load_job(manifest), directory):
            make(path)
    except CheckpointPathError as error:
        raise InputError(str(error)) from None


def _prepare_emulation(manifest: dict[str, Any], directory: Path) -> None:
    """Fail before the first probe, whose failure would look like an error in the user's code."""
    from memtune.api import load_job
    from memtune_operator.local.command import with_python

    job = load_job(with_python(manifest))
    if job.spec.resources.is_emulated:
        from memtune_cli.input.emulated_job import prepare

        prepare(job, directory)


def install_runner(directory: Path) -> None:
    """Copy the runner to a directory on the children's PYTHONPATH, as a pod's init container does."""
    command = [sys.executable, "-m", "memtune_runner", "install", str(directory / "runner")]
    installed = subprocess.run(command, check=False, capture_output=True, text=True)
    if installed.returncode:
        raise InputError(f"the runner cannot be put into {directory}: {installed.stderr.strip()}")


async def _drive(manifest: dict[str, Any], directory: Path, shared: Path, earlier: str) -> int:
    from memtune_operator.local.backend import LocalBackend
    from memtune_operator.reconciler import Reconciler
    from memtune_operator.search.optuna_search import propose

    screen = _Screen(directory)
    if earlier:
        screen.say(earlier)
    backend = LocalBackend(directory, screen.tell, shared)
    key = backend.accept(manifest)
    reconciler = Reconciler(backend, propose, time.time, screen)
    backend.on_change(lambda: reconciler.wake(key))
    await backend.stop_orphans()
    # Runs have their own sessions and would survive the closing of the terminal.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, _interrupt, backend, screen)
    reconciler.wake(key)
    clock = asyncio.ensure_future(screen.keep_fresh())
    try:
        return await screen.ended
    finally:
        clock.cancel()
        await reconciler.stop()
        await backend.stop()


def _interrupted_by_reader() -> None:
    """`memtune run job.yaml | head` ends as by Ctrl-C: Python ignores the signal by which other programs end there."""
    signal.raise_signal(signal.SIGINT)


def _interrupt(backend: LocalBackend, screen: _Screen) -> None:
    from memtune_operator.api_errors import ApiError
    from memtune_operator.local.backend import StateError

    screen.interrupted()
    try:
        backend.suspend()
    except (ApiError, StateError) as error:
        # The runs are ended anyway, and the next call finds them gone.
        screen.give_up(str(error))


class _Screen:
    """Shows the job's progress and detects its end."""

    def __init__(self, directory: Path) -> None:
        self.is_interrupted = False
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._directory = directory
        self._display = Display(unread=_interrupted_by_reader)
        self._view: JobView | None = None
        self._messages: list[str] = []
        self._warnings: list[str] = []  # of the script, over the whole job
        self._is_launched = False  # whether an event has said which attempt trains now

    def say(self, line: str) -> None:
        """Print a line that is not an event."""
        self._display.tell(line)

    def tell(self, event: JobEvent) -> None:
        """Print an event."""
        self._display.tell(without_shown(event.message, self._messages))
        self._messages.append(event.message)
        self._is_launched |= event.reason in (LAUNCHED, RELAUNCHED)
        if event.reason == SCRIPT_WARNING:
            self._warnings.append(event.message)

    def interrupted(self) -> None:
        """The user interrupted the command."""
        self._display.tell("stopping the runs; call the same command again to go on")
        self.is_interrupted = True

    def give_up(self, why: str) -> None:
        """The state cannot be read or written, so no reconciliation will report the end."""
        if not self.ended.done():
            self._display.end([why])
            self.ended.set_result(INTERRUPTED)

    def reconciled(self, before: Snapshot, after: Snapshot, seconds: float) -> None:
        """Print what is new, and stop when the job is over."""
        view = with_local_path(after.manifest, self._directory)
        self._is_launched &= view.status.phase in ("Launching", "Running")
        if not self._is_launched:
            for line in saying(self._view, view, self._messages, self._warnings):
                self._display.tell(line)
        self._view, self._messages = view, []
        self._display.show(self._page())
        code = self._exit_code(after)
        if code is not None and not self.ended.done():
            self._display.end([*self._page(), *self._left_behind(view)])
            self.ended.set_result(code)

    def _left_behind(self, view: JobView) -> list[str]:
        """Where the next call continues, and where the files are."""
        checkpoint = [f"checkpoint: {view.checkpoint}"] if self.is_interrupted and view.status.attempts else []
        page = f"`memtune report {view.asked_as}` writes its page"
        is_edited = any(each.reason == SPEC_CHANGED and each.status == "True" for each in view.status.conditions)
        new = [f"a new job is made here so: {begin_anew(self._directory)}"] if is_edited else []
        return [*checkpoint, *new, f"logs and state: {self._directory}; {page}"]

    async def keep_fresh(self) -> None:
        """Refresh the times on the page while nothing happens."""
        while self._display.is_live and not self.ended.done():
            self._display.show(self._page())
            await asyncio.sleep(1.0)

    def _page(self) -> list[str]:
        if self._view is None or not self._display.is_live:
            return []
        return live_page(self._display.screen, self._view, None, time.time())

    def failed(self, key: Key) -> None:
        """The reconciler has logged the error and retries."""

    def gone(self, key: Key) -> None:
        """The job's state was removed."""
        if not self.ended.done():
            self.ended.set_result(1)

    def _exit_code(self, snapshot: Snapshot) -> int | None:
        phase = snapshot.status.get("phase")
        if self.is_interrupted:
            # A reconciliation in progress does not know of the interruption and may still start a run.
            is_heard = bool(snapshot.manifest["spec"].get("suspend"))
            is_quiet = not any(pod.exit_code is None for run in snapshot.observed.runs.values() for pod in run.pods)
            return INTERRUPTED if is_heard and is_quiet else None
        if phase == "Suspended":
            return 1  # nothing can resume it: the job file is read once per call
        if any(
            each["type"] == "Stalled" and each["status"] == "True" for each in snapshot.status.get("conditions", [])
        ):
            return 1
        return {"Succeeded": 0, "Failed": 1}.get(phase or "")
