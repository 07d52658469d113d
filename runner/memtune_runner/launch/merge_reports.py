"""Merges the ends of a node's ranks into one report. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from memtune.wire.report import EXIT_CODES, LOG_TAIL_BYTES, Device, Ending, Report
from memtune_runner.launch.rendezvous import Ended
from memtune_runner.rank import failure_causes
from memtune_runner.rank.failure_causes import ProcessEnd
from memtune_runner.rank.settings import Settings

_Number = TypeVar("_Number", int, float)
_LOG_TAIL_LINES = 20
_LEFT = (
    "a Python of the command left without a report, as os._exit does, so what it trained is unknown; let it end by "
    "sys.exit, or at its last line"
)
_UNWATCHED = (
    "the runner was in no Python of the command; one that sets PYTHONPATH must keep what is there, as in "
    "PYTHONPATH=DIRECTORY:$PYTHONPATH, and start no Python with -E, -I or -S"
)


@dataclass(frozen=True)
class RankEnd:
    """How one rank ended: its exit code (128+N for signal N), its reports and the tail of its log.

    ``was_stopped``: the rank was healthy when the launcher ended it, so its own end explains nothing.
    ``may_outlive_hang``: the rank was not ended for a hang, so its own end explains a hang below it as well.
    ``leaves_no_report``: a worker of the rank left in a way in which Python runs nothing more.
    """

    rank: int
    exit_code: int
    reports: tuple[Report, ...] = ()
    log: str = ""
    was_stopped: bool = False
    may_outlive_hang: bool = False
    leaves_no_report: bool = False

    @property
    def report(self) -> Report | None:
        """Return the report that counts, of those left by the processes of this rank.

        A hang for which the rank was ended always counts, even if the rank itself reported success. Otherwise a failed
        rank is described by a failure and a successful one by a success, since a shell may go on after one of its
        programs failed. A shell may also hide that all of them failed. Among equal reports the one with the most steps
        counts, since the others did something else than train, and at last the newest, by which a shell ended.
        """
        fitting = self._hangs or [
            each for each in self.reports if (each.ending is Ending.SUCCEEDED) == (self.exit_code == 0)
        ]
        return max(reversed(fitting or self.reports), key=lambda each: each.steps or 0, default=None)

    @property
    def failure(self) -> ProcessEnd | None:
        """Return why this rank failed by itself; None if it succeeded or was stopped."""
        if self.was_stopped or (self.exit_code == 0 and not self._hangs and not self._hides_failure):
            return None
        report = self.report
        if report is None or report.ending is Ending.SUCCEEDED:
            return failure_causes.of_words(self.log, self.exit_code)
        followed = report.ending is Ending.ERROR and failure_causes.is_consequence(f"{report.message}\n{self.log}")
        return ProcessEnd(report.ending, report.exit_code, report.message, followed)

    @property
    def _hides_failure(self) -> bool:
        """Whether no program with a report succeeded: `python train.py | tee log` exits with the code of tee."""
        return bool(self.reports) and all(each.ending is not Ending.SUCCEEDED for each in self.reports)

    @property
    def _hangs(self) -> list[Report]:
        """The reports of hangs for which the rank was ended."""
        return [] if self.may_outlive_hang else [each for each in self.reports if each.ending is Ending.HUNG]


def cause(ends: Sequence[RankEnd]) -> tuple[RankEnd, ProcessEnd] | None:
    """Return the rank whose failure caused the others; ``ends`` are ordered by the time they were noticed."""
    failed = [(end, failure) for end in ends if (failure := end.failure)]
    if not failed:
        return None
    first = failure_causes.first_cause([failure for _, failure in failed])
    return next((end, failure) for end, failure in failed if failure is first)


def merge(settings: Settings, ends: Sequence[RankEnd], ended: Ended | None) -> Report:
    """Return the node's report. ``ended`` is the outside reason for its end: a signal or another node."""
    found = cause(ends)
    report = _measured(settings, ends, found[0] if found else None)
    if found is not None:
        end, failure = found
        tail = log_tail(end.log) if settings.report_log_tail else ""
        return replace(
            report,
            ending=failure.ending,
            exit_code=failure.exit_code,
            message=failure.message,
            rank=end.rank,
            log_tail=tail,
        )
    if ended is not None:
        return replace(report, ending=Ending.TERMINATED, exit_code=ended.exit_code, message=_elsewhere(settings, ended))
    unwatched = _unwatched(ends)
    if settings.is_probe and not report.steps:
        return _nothing_measured(report, unwatched)
    # A completed training is not repeated, which could take days.
    return replace(report, warnings=unwatched) if unwatched else report


def log_tail(log: str) -> str:
    """Return the last lines of a rank's log, up to what a report may carry."""
    text = "\n".join(log.splitlines()[-_LOG_TAIL_LINES:]).encode("utf-8", "replace")
    tail = text[-LOG_TAIL_BYTES:]
    # Drop a line that was cut, unless it is the only one.
    is_cut = len(text) > len(tail) and text[-len(tail) - 1 :][:1] != b"\n"
    if is_cut and b"\n" in tail:
        tail = tail.partition(b"\n")[2]
    return tail.decode("utf-8", "ignore")


def _elsewhere(settings: Settings, ended: Ended) -> str:
    if ended.node == settings.node_rank or ended.ending is Ending.TERMINATED:
        return ended.message
    return f"ended with the run: node {ended.node} ended first ({ended.ending}): {ended.message}"


def _unwatched(ends: Sequence[RankEnd]) -> str:
    """Return why no rank has reported; empty if one has."""
    if any(end.report for end in ends):
        return ""
    return _LEFT if any(end.leaves_no_report for end in ends) else f"nothing was applied or watched: {_UNWATCHED}"


def _nothing_measured(report: Report, unwatched: str) -> Report:
    """Turn the success of a probe that trained nothing into a failure: it measured nothing."""
    seen = unwatched or "the optimizer never stepped; correct the command, or the integration"
    message = f"the command ended with exit code 0, but {seen}"
    return replace(report, ending=Ending.BAD_INPUT, exit_code=EXIT_CODES[Ending.BAD_INPUT], message=message)


def _measured(settings: Settings, ends: Sequence[RankEnd], failed: RankEnd | None) -> Report:
    """Return what the ranks measured, as the report of a success."""
    reported = [(end.rank, end.report) for end in sorted(ends, key=lambda end: end.rank)]
    reports = {rank: report for rank, report in reported if report is not None}
    source = failed.report if failed else None
    if source is None:
        # The rank that trained furthest; among equals, rank 0.
        source = max(reports.values(), key=lambda each: each.steps or 0, default=_EMPTY)
    fullest = max(reports.values(), key=lambda each: each.memory.peak_device_bytes, default=_EMPTY)
    return replace(
        source,
        ending=Ending.SUCCEEDED,
        exit_code=0,
        message="",
        log_tail="",
        run=settings.run or None,
        plan=str(settings.plan),
        rank=source.rank if reports else None,
        world=settings.world,
        attempt=settings.attempt,
        steps=_least(each.steps for each in reports.values()),
        skipped_steps=_most(each.skipped_steps for each in reports.values()),
        resumed_samples=_most(each.resumed_samples for each in reports.values()),
        checkpoint_samples=_most(each.checkpoint_samples for each in reports.values()),
        trained_samples=_of_all(settings, [each.trained_samples for each in reports.values()]),
        total_samples=_of_all(settings, [each.total_samples for each in reports.values()]),
        own_batch=_most(each.own_batch for each in reports.values()),
        warnings=next((each.warnings for each in reports.values() if each.warnings), ""),
        device=settings.device,
        memory=replace(
            fullest.memory,
            # The failed request of whichever rank had one, and the highest number of allocation retries.
            failed_request_bytes=source.memory.failed_request_bytes,
            alloc_retries=_most(each.memory.alloc_retries for each in reports.values()),
        ),
        largest=fullest.largest or source.largest,
        step_seconds=_most(each.step_seconds for each in reports.values()),
    )


_EMPTY = Report(Ending.SUCCEEDED, 0)


def _of_all(settings: Settings, shares: Sequence[int | None]) -> int | None:
    """The sum over all ranks of the node; None where one of them does not report its share.

    The one rank of an emulated run stands for all ranks of all nodes.
    """
    known = [share for share in shares if share is not None]
    if settings.device is Device.EMULATED:
        return known[0] * settings.world if known else None
    return sum(known) if len(known) == settings.gpus_per_node else None


def _least(values: Iterable[_Number | None]) -> _Number | None:
    return min((value for value in values if value is not None), default=None)


def _most(values: Iterable[_Number | None]) -> _Number | None:
    return max((value for value in values if value is not None), default=None)
