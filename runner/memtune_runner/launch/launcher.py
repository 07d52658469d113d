"""Runs the ranks of one node from the first check to the end that all nodes share."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import time
import traceback
from dataclasses import replace
from pathlib import Path

from memtune.wire import environment
from memtune.wire.report import EXIT_CODES, Device, Ending, Report
from memtune_runner.checkpoints import newest, resolve
from memtune_runner.command import checks, worker_command
from memtune_runner.command.command import Command, Kind
from memtune_runner.emulated import job as emulated_job
from memtune_runner.launch import processes
from memtune_runner.launch.merging import RankEnd, cause, merge
from memtune_runner.launch.peers import Alone, Ended, Peers, join
from memtune_runner.launch.signals import Signals
from memtune_runner.launch.variables import of_worker, with_resume
from memtune_runner.launch.workers import Worker, Workers
from memtune_runner.rank import deepspeed_file, ranks
from memtune_runner.rank.bad_input import BadInputError
from memtune_runner.rank.hang_grace import Patience
from memtune_runner.rank.settings import Settings

# One failure ends all ranks of all nodes within 5 s: half of one to see it, these, and what killing takes.
_GRACE_SECONDS = 1.5
# How long the ranks of a run that hangs still live to show their stacks: on the first node, of which the others have
# yet to hear (half a second until they look, as long until their launchers do), and on those. It fits into the 5 s.
_STACKS_SECONDS = 1.5
_STACKS_ELSEWHERE_SECONDS = 0.5
# How long the cause of a failure may come after its consequence, on this node or on another.
_ECHO_SECONDS = 1.0
# What the launcher itself needs between the last worker's end and the kubelet's SIGKILL.
_OWN_GRACE_SECONDS = 5
_PERIOD_SECONDS = 0.5
_KILLED = 137


class Launcher:
    """The ranks of one node. ``directory`` is where they leave their reports."""

    def __init__(self, settings: Settings, command: Command, directory: Path) -> None:
        self._settings, self._command, self._directory = settings, command, directory
        self._signals, self._workers = Signals(), Workers()
        self._peers: Peers = Alone()
        self._ends_at = time.monotonic() + ((settings.is_probe and settings.probe_seconds) or math.inf)

    def run(self) -> Report:
        """Start the ranks, wait for their end or bring it about, and say what it was."""
        report = self._run()
        return report if self._settings.is_probe else _with_newest(report, self._settings.checkpoint_path)

    def _run(self) -> Report:
        settings = self._settings
        processes.adopt_orphans()
        try:
            checks.runnable(self._command)
            self._peers = join(
                settings.node_rank,
                1 if settings.device is Device.EMULATED else settings.nodes,
                settings.rendezvous,
                settings.rendezvous_seconds,
                Patience(self._directory),
                self._is_over,
            )
            self._resume()
            if not (self._is_over() or self._peers.first()):
                self._start()
            ended = self._watch()
            return self._failed(ended) if ended or self._has_failure() else self._succeeded()
        except BadInputError as error:
            print(f"memtune: {error}", file=sys.stderr, flush=True)
            return self._refused(Ending.BAD_INPUT, EXIT_CODES[Ending.BAD_INPUT], str(error))
        except Exception as error:  # a mistake of ours must not end a run without a word
            traceback.print_exc()
            return self._refused(Ending.ERROR, 1, f"memtune: {type(error).__name__}: {error}")
        finally:
            self._workers.kill()

    def leave(self) -> None:
        """Let the other nodes learn of the end, once it is reported."""
        self._peers.leave()

    def _is_over(self) -> bool:
        return self._signals.received is not None or self._is_overdue()

    def _is_overdue(self) -> bool:
        """Whether a probe has gone on for longer than its budget allows, be it that nobody is there to see it."""
        return time.monotonic() > self._ends_at

    def _resume(self) -> None:
        """Find on node 0 what the run goes on from, and let all ranks of all nodes know."""
        shared = self._peers.shared(lambda: _resumed_from(self._settings), self._is_over)
        found = json.loads(shared) if shared else None
        self._settings = replace(
            self._settings,
            resume_from=Path(found["directory"]) if found else None,
            resume_samples=found["samples"] if found else 0,
        )

    def _refused(self, ending: Ending, exit_code: int, message: str) -> Report:
        """The report of a run that could not be started, or not be watched any more."""
        report = replace(merge(self._settings, (), None), ending=ending, exit_code=exit_code, message=message)
        return replace(report, failure_order=self._announce(report))

    def _start(self) -> None:
        settings, command = self._settings, self._command
        deepspeed_file.prepare(settings)
        is_program = command.kind is Kind.PROGRAM
        common = {
            **of_worker(settings, os.environ, is_program),
            **worker_command.variables(command),
            **self._peers.variables(),
            environment.RANK_DIRECTORY: str(self._directory),
            environment.NODE_DIRECTORY: str(self._directory),
        }
        python = () if is_program else checks.python_of(command)
        started = ranks.of_node(settings.node_rank, settings.gpus_per_node, settings.nodes)
        if settings.device is Device.EMULATED:
            common |= emulated_job.variables(settings, command, python)
            started = started[:1]
        own = {name: with_resume(value, common) for name, value in os.environ.items()}
        for rank in started:
            words = [with_resume(word, common) for word in worker_command.words(command, python, str(rank.local_rank))]
            self._workers.start(rank, words, {**own, **common, **rank.variables()}, is_program)
        self._workers.pass_on_output()

    def _watch(self) -> Ended | None:
        """Wait until the ranks have ended by themselves, well or not (None), or must end for a reason from outside."""
        while True:
            self._workers.poll()
            if self._signals.received is not None:
                return _terminated(self._settings.node_rank, self._signals.received)
            if self._has_failure():
                return None
            if (first := self._peers.first()) is not None:
                return first
            # Ranks that are all at their end by now came to it in time.
            if self._is_overdue() and (self._workers.running or not self._workers.all):
                return self._overdue()
            if not self._workers.running:
                return None
            self._signals.sleep(_PERIOD_SECONDS)

    def _has_failure(self) -> bool:
        return any(self._has_failed(worker) or self._has_reported_failure(worker) for worker in self._workers.all)

    def _has_failed(self, worker: Worker) -> bool:
        """Whether a worker has ended badly; a shell may end with 0 although its script did."""
        if worker.exit_code == 0 and worker.is_program:
            return self._end_of(worker).failure is not None
        return worker.has_failed

    def _has_reported_failure(self, worker: Worker) -> bool:
        """Whether a worker has failed although its process is still there: a thread, or CUDA, may hold it up.

        A shell may go on after one of its programs failed, but with a rank that hangs the others do, too.
        """
        if worker.exit_code is not None or self._may_outlive_hang(worker):
            return False
        reports = ranks.read_rank_reports(self._directory, worker.rank)
        failures = {Ending.HUNG} if worker.is_program else set(Ending) - {Ending.SUCCEEDED}
        return any(report.ending in failures for report in reports)

    def _may_outlive_hang(self, worker: Worker) -> bool:
        """Whether it is a shell that no other rank waits for: what hangs below it ends by itself and may be retried."""
        return worker.is_program and self._settings.world == 1

    def _succeeded(self) -> Report:
        report = merge(self._settings, self._ends(), None)
        if report.ending is not Ending.SUCCEEDED:
            return replace(report, failure_order=self._announce(report))
        # The others may still be at work, and what they share is kept on node 0.
        while not (self._peers.others_have_left() or self._peers.first() or self._is_over()):
            self._signals.sleep(_PERIOD_SECONDS)
        return report

    def _failed(self, ended: Ended | None) -> Report:
        """End all ranks, here and elsewhere, for a failure of a rank of ours (None) or for a reason from outside."""
        if ended is None:
            self._workers.wait(_ECHO_SECONDS, is_enough=self._knows_cause)
        well = [worker for worker in self._workers.running if not self._has_reported_failure(worker)]
        for worker in well:
            worker.was_stopped = True
        is_graceful = ended is not None and ended.is_graceful
        order = self._hang_told(ended, well) if self._is_hang(ended) else None
        self._workers.ask_to_end(self._signals.received or signal.SIGTERM)
        if order is None:
            ended = ended or self._cause_elsewhere()
            order = self._announce(self._report(ended), is_graceful)
        grace_seconds = max(self._settings.grace_seconds - _OWN_GRACE_SECONDS, 1) if is_graceful else _GRACE_SECONDS
        self._workers.wait(grace_seconds, is_enough=self._signals.is_urgent)
        self._workers.kill()
        return replace(self._report(ended), failure_order=order)

    def _is_hang(self, ended: Ended | None) -> bool:
        if ended is not None:
            return ended.ending is Ending.HUNG
        found = cause(self._ends())
        return found is not None and found[1].ending is Ending.HUNG

    def _hang_told(self, ended: Ended | None, well: list[Worker]) -> int:
        """Let all ranks of all nodes show their stacks while they still stand where they stood; the order of the end.

        A rank that goes takes others along by their connections, so no node ends one before the others have heard.
        """
        order = self._announce(self._report(ended))
        self._workers.show_stacks(well)
        seconds = _STACKS_ELSEWHERE_SECONDS if order else _STACKS_SECONDS
        self._workers.wait(seconds, is_enough=self._signals.is_urgent)
        return order

    def _report(self, ended: Ended | None) -> Report:
        """What the ranks of this node came to. A probe that has stepped when its time is over has not hung for sure."""
        report = merge(self._settings, self._ends(), ended)
        is_own = ended is not None and ended.node == self._settings.node_rank and ended.ending is Ending.HUNG
        if not is_own or report.steps or report.ending is not Ending.TERMINATED:
            return report
        return replace(report, ending=Ending.HUNG, exit_code=EXIT_CODES[Ending.HUNG])

    def _overdue(self) -> Ended:
        """A probe's ranks neither ended nor reported; where they could not even start, the other nodes are late."""
        seconds = self._settings.probe_seconds
        message = f"the probe neither ended nor reported within {seconds} s, its part of tuning.maxGpuSeconds"
        ending = Ending.HUNG if self._workers.all else Ending.TERMINATED
        return Ended(self._settings.node_rank, ending, 143, message)

    def _knows_cause(self) -> bool:
        found = cause(self._ends())
        return found is not None and not found[1].is_consequence

    def _cause_elsewhere(self) -> Ended | None:
        """What another node died of, if what our ranks died of only followed from it."""
        deadline = time.monotonic() + _ECHO_SECONDS
        while not self._knows_cause() and time.monotonic() < deadline:
            if (first := self._peers.first()) is not None:
                return first
            time.sleep(_PERIOD_SECONDS / 10)
        return None

    def _announce(self, report: Report, is_graceful: bool = False) -> int:
        node = self._settings.node_rank
        return self._peers.announce(Ended(node, report.ending, report.exit_code, report.message, is_graceful))

    def _ends(self) -> list[RankEnd]:
        """What is left of each rank, those that ended first in front."""
        return [self._end_of(worker) for worker in sorted(self._workers.all, key=self._time_of_end)]

    def _end_of(self, worker: Worker) -> RankEnd:
        reports = ranks.read_rank_reports(self._directory, worker.rank)
        code = _KILLED if worker.exit_code is None else worker.exit_code
        is_well = worker.exit_code is None and not self._has_reported_failure(worker)
        log = self._workers.log(worker.rank)
        was_stopped = worker.was_stopped or is_well
        return RankEnd(worker.rank.rank, code, reports, log, was_stopped, self._may_outlive_hang(worker))

    def _time_of_end(self, worker: Worker) -> float:
        """When a rank ended. One that reports a failure may take longer to die than those it takes along."""
        ended_at = worker.ended_at or float("inf")
        try:
            written_at = ranks.report_path(self._directory, worker.rank).stat().st_mtime
        except OSError:
            return ended_at
        return min(ended_at, written_at)


def _terminated(node: int, signal_number: int) -> Ended:
    name = signal.Signals(signal_number).name
    return Ended(node, Ending.TERMINATED, 128 + signal_number, f"{name} from outside", is_graceful=True)


def _resumed_from(settings: Settings) -> str:
    found = resolve(settings)
    return json.dumps({"directory": str(found.directory), "samples": found.samples}) if found else ""


def _with_newest(report: Report, checkpoints: Path | None) -> Report:
    """With the checkpoint that the next attempt goes on from: a rank that was killed could not tell of it."""
    found = newest(checkpoints) if checkpoints else None
    if found is None:
        return report
    manifest = found.manifest
    return replace(report, checkpoint_samples=manifest.samples, checkpoint_format=manifest.format.value)
