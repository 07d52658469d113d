"""The launcher of one node: starts its ranks, watches them, and ends them together with the other nodes' ranks."""

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
from memtune_runner.checkpoints import newest, probe_saves, resolve
from memtune_runner.command import checks, worker_command
from memtune_runner.command.command import Command, Kind
from memtune_runner.emulated import job_rank
from memtune_runner.launch import process_trees
from memtune_runner.launch.merge_reports import RankEnd, cause, merge
from memtune_runner.launch.received_signals import Signals
from memtune_runner.launch.rendezvous import Alone, Ended, Peers, join
from memtune_runner.launch.variables import of_worker, with_resume
from memtune_runner.launch.workers import Start, Worker, Workers, started
from memtune_runner.rank import deepspeed_file, ranks
from memtune_runner.rank.bad_input import BadInputError
from memtune_runner.rank.failure_causes import ProcessEnd, of_bad_input
from memtune_runner.rank.hang_grace import HangGrace
from memtune_runner.rank.settings import Settings

# A failure of one rank ends all ranks of all nodes within 5 s: 0.5 s to notice it, this grace period, then SIGKILL.
_GRACE_SECONDS = 1.5
# How long the ranks of a hanging run live on to print their stacks: on the node that notices first (the others need
# half a second to notice, and their launchers as long again) and on the other nodes. Both fit into the 5 s.
_STACKS_SECONDS = 1.5
_STACKS_ELSEWHERE_SECONDS = 0.5
# How long to wait for the cause of a failure after seeing its consequence, on this node or on another.
_ECHO_SECONDS = 1.0
# The launcher's own share of the pod's grace period, between the last worker's end and the kubelet's SIGKILL.
_OWN_GRACE_SECONDS = 5
_PERIOD_SECONDS = 0.5
_KILLED = 137


class Launcher:
    """Runs the ranks of one node. Each rank leaves its report in ``directory``."""

    def __init__(self, settings: Settings, command: Command, directory: Path, start: Start = started) -> None:
        self._settings, self._command, self._directory = settings, command, directory
        self._signals, self._workers = Signals(), Workers(start)
        self._peers: Peers = Alone()
        self._ends_at = time.monotonic() + ((settings.is_probe and settings.probe_seconds) or math.inf)

    def run(self) -> Report:
        """Start the ranks, wait for them or end them, and return the node's report."""
        report = self._run()
        if not self._settings.is_probe:
            return _with_newest(report, self._settings.checkpoint_path)
        # The other nodes have ended by now, or are being ended.
        if self._settings.node_rank == 0:
            probe_saves.delete(self._settings)
        return report

    def _run(self) -> Report:
        settings = self._settings
        process_trees.adopt_orphans()
        try:
            checks.runnable(self._command)
            self._peers = join(
                settings.node_rank,
                1 if settings.device is Device.EMULATED else settings.nodes,
                settings.rendezvous,
                settings.rendezvous_seconds,
                HangGrace(self._directory),
                self._is_over,
            )
            self._resume()
            if not (self._is_over() or self._peers.first()):
                self._start()
            ended = self._watch()
            return self._failed(ended) if ended or self._has_failure() else self._succeeded()
        except BadInputError as error:
            print(f"memtune: {error}", file=sys.stderr, flush=True)
            return self._refused(of_bad_input(error))
        except Exception as error:  # a bug in the launcher must still leave a report
            traceback.print_exc()
            return self._refused(ProcessEnd(Ending.ERROR, 1, f"memtune: {type(error).__name__}: {error}"))
        finally:
            self._workers.kill()

    def leave(self) -> None:
        """Let the other nodes read how the run ended, after the report is written."""
        self._peers.leave()

    def _is_over(self) -> bool:
        return self._signals.received is not None or self._is_overdue()

    def _is_overdue(self) -> bool:
        """Whether a probe has used up its time budget; the launcher checks because the operator may be down."""
        return time.monotonic() > self._ends_at

    def _resume(self) -> None:
        """Choose the checkpoint to resume from on node 0 and share it with all nodes."""
        shared = self._peers.shared(lambda: _resumed_from(self._settings), self._is_over)
        found = json.loads(shared) if shared else None
        self._settings = replace(
            self._settings,
            resume_from=Path(found["directory"]) if found else None,
            resume_step=found["step"] if found else None,
            resume_samples=found["samples"] if found else 0,
        )

    def _refused(self, failure: ProcessEnd) -> Report:
        """Return the report of a run that could not start or can no longer be watched."""
        report = replace(
            merge(self._settings, (), None),
            ending=failure.ending,
            exit_code=failure.exit_code,
            message=failure.message,
            bad_command=failure.is_bad_command or None,
        )
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
            common |= job_rank.variables(settings, command, python)
            started = started[:1]
        own = {name: with_resume(value, common) for name, value in os.environ.items()}
        for rank in started:
            words = [with_resume(word, common) for word in worker_command.words(command, python, str(rank.local_rank))]
            self._workers.start(rank, words, {**own, **common, **rank.variables()}, is_program)
        self._workers.pass_on_output()

    def _watch(self) -> Ended | None:
        """Wait until the ranks end by themselves (None), or return the outside reason for which they must end."""
        while True:
            self._workers.poll()
            if self._signals.received is not None:
                return _terminated(self._settings.node_rank, self._signals.received)
            if self._has_failure():
                return None
            if (first := self._peers.first()) is not None:
                return first
            # Ranks that have all ended by now were in time.
            if self._is_overdue() and (self._workers.running or not self._workers.all):
                return self._overdue()
            if not self._workers.running:
                return None
            self._signals.sleep(_PERIOD_SECONDS)

    def _has_failure(self) -> bool:
        return any(self._has_failed(worker) or self._has_reported_failure(worker) for worker in self._workers.all)

    def _has_failed(self, worker: Worker) -> bool:
        """Whether a worker failed; a shell may exit with 0 although its script failed."""
        if worker.exit_code == 0 and worker.is_program:
            return self._end_of(worker).failure is not None
        return worker.has_failed

    def _has_reported_failure(self, worker: Worker) -> bool:
        """Whether a worker reported a failure while its process is still alive, held up by a thread or by CUDA.

        A shell may go on after one of its programs failed; if a rank hangs, however, all ranks hang.
        """
        if worker.exit_code is not None or self._may_outlive_hang(worker):
            return False
        reports = ranks.read_rank_reports(self._directory, worker.rank)
        failures = {Ending.HUNG} if worker.is_program else set(Ending) - {Ending.SUCCEEDED}
        return any(report.ending in failures for report in reports)

    def _may_outlive_hang(self, worker: Worker) -> bool:
        """Whether the worker is a shell that no other rank waits for: a hanging program below it ends alone and may be
        retried."""
        return worker.is_program and self._settings.world == 1

    def _succeeded(self) -> Report:
        report = merge(self._settings, self._ends(), None)
        if report.ending is not Ending.SUCCEEDED:
            return replace(report, failure_order=self._announce(report))
        # The other nodes may still be training, and node 0 hosts the store that they share.
        while not (self._peers.others_have_left() or self._peers.first() or self._is_over()):
            self._signals.sleep(_PERIOD_SECONDS)
        return report

    def _failed(self, ended: Ended | None) -> Report:
        """End all ranks of all nodes, after a failure of a rank of this node (None) or for an outside reason."""
        if ended is None:
            self._workers.wait(_ECHO_SECONDS, is_enough=self._knows_cause)
        well = [worker for worker in self._workers.running if not self._has_reported_failure(worker)]
        for worker in well:
            worker.was_stopped = True
        is_graceful = ended is not None and ended.is_graceful
        order = self._announce_hang(ended, well) if self._is_hang(ended) else None
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

    def _announce_hang(self, ended: Ended | None, well: list[Worker]) -> int:
        """Announce a hang, have all ranks of all nodes print their stacks in place, and return the announcement's
        order.

        A rank that exits breaks its peers' connections, so no node ends a rank before the other nodes have heard.
        """
        order = self._announce(self._report(ended))
        self._workers.show_stacks(well)
        seconds = _STACKS_ELSEWHERE_SECONDS if order else _STACKS_SECONDS
        self._workers.wait(seconds, is_enough=self._signals.is_urgent)
        return order

    def _report(self, ended: Ended | None) -> Report:
        """Merge the ranks' ends into the report. A probe that made steps before its time was up counts as slow, not as
        hung."""
        report = merge(self._settings, self._ends(), ended)
        is_own = ended is not None and ended.node == self._settings.node_rank and ended.ending is Ending.HUNG
        if not is_own or report.steps or report.ending is not Ending.TERMINATED:
            return report
        return replace(report, ending=Ending.HUNG, exit_code=EXIT_CODES[Ending.HUNG])

    def _overdue(self) -> Ended:
        """Describe a probe that ran out of time: hung, or, if its ranks never started, waiting for other nodes."""
        seconds = self._settings.probe_seconds
        message = f"the probe neither ended nor reported within {seconds} s, its part of tuning.maxGpuSeconds"
        ending = Ending.HUNG if self._workers.all else Ending.TERMINATED
        return Ended(self._settings.node_rank, ending, 143, message)

    def _knows_cause(self) -> bool:
        found = cause(self._ends())
        return found is not None and not found[1].is_consequence

    def _cause_elsewhere(self) -> Ended | None:
        """Return the failure of another node if this node's failures are only consequences of it."""
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
        """Return how each rank ended, in the order in which they ended."""
        return [self._end_of(worker) for worker in sorted(self._workers.all, key=self._time_of_end)]

    def _end_of(self, worker: Worker) -> RankEnd:
        reports = ranks.read_rank_reports(self._directory, worker.rank)
        code = _KILLED if worker.exit_code is None else worker.exit_code
        is_well = worker.exit_code is None and not self._has_reported_failure(worker)
        log = self._workers.log(worker.rank)
        was_stopped = worker.was_stopped or is_well
        leaves_no_report = ranks.leaves_no_report(self._directory, worker.rank)
        outlives = self._may_outlive_hang(worker)
        return RankEnd(worker.rank.rank, code, reports, log, was_stopped, outlives, leaves_no_report)

    def _time_of_end(self, worker: Worker) -> float:
        """When a rank ended. A rank that reports a failure may take longer to exit than the ranks it takes down."""
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
    if found is None:
        return ""
    return json.dumps({"directory": str(found.directory), "step": found.step, "samples": found.samples})


def _with_newest(report: Report, checkpoints: Path | None) -> Report:
    """Add the checkpoint that the next attempt resumes from; a rank that was killed could not report it."""
    found = newest(checkpoints) if checkpoints else None
    if found is None:
        return report
    manifest = found.manifest
    return replace(report, checkpoint_samples=manifest.samples, checkpoint_format=manifest.format.value)
