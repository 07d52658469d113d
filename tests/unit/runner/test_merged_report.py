"""One report for all ranks: who failed first, whose memory counts, and the message if no rank left one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from memtune.plans.plan import Plan
from memtune.wire.report import LARGEST_WARNING, Device, Ending, Memory, Report, ReportedComponent
from memtune.wire.run import RunKind
from memtune_runner.launch.merge_reports import RankEnd, log_tail, merge
from memtune_runner.launch.rendezvous import Ended
from memtune_runner.rank.settings import Settings

SETTINGS = Settings(
    plan=Plan.parse("bf16-z2-sel-mb4x2"),
    kind=RunKind.TRAIN,
    integration="env",
    global_batch=16,
    sequence_length=128,
    run="llama-train-1",
    attempt=1,
    gpus_per_node=2,
)
EMULATED = replace(SETTINGS, device=Device.EMULATED, gpu_memory_bytes=80 << 30, gpu_name="h100-80gb")
PROBE = replace(SETTINGS, kind=RunKind.PROBE, attempt=None)


def report(rank: int, steps: int | None = 5, ending: Ending = Ending.SUCCEEDED, **fields: object) -> Report:
    memory = Memory(peak_reserved_bytes=100 + rank)
    return replace(Report(ending, 0, rank=rank, steps=steps, memory=memory), **fields)  # type: ignore[arg-type]  # any


WELL = [RankEnd(rank, 0, (report(rank, 5 + rank),)) for rank in (0, 1)]
OOM = report(
    0, 2, Ending.DEVICE_OOM, exit_code=85, message="CUDA out of memory", largest=(ReportedComponent("weights", 9),)
)
STOPPED = RankEnd(1, 143, (report(1, 3, Ending.ERROR, exit_code=143, message="SystemExit: 143"),), was_stopped=True)


def test_a_success_has_the_fewest_steps_and_the_fullest_memory() -> None:
    merged = merge(SETTINGS, WELL, None)
    assert (merged.ending, merged.exit_code, merged.steps) == (Ending.SUCCEEDED, 0, 5)
    assert merged.memory.peak_reserved_bytes == 101
    assert (merged.run, merged.plan, merged.attempt, merged.world) == ("llama-train-1", str(SETTINGS.plan), 1, 2)
    assert merged.resumed_samples is None


def test_a_training_that_was_never_watched_is_reported() -> None:
    merged = merge(SETTINGS, [RankEnd(0, 0), RankEnd(1, 0)], None)
    assert merged.ending is Ending.SUCCEEDED, "it is not made again"
    assert "the runner was in no Python of the command" in merged.warnings
    assert "PYTHONPATH=DIRECTORY:$PYTHONPATH" in merged.warnings
    assert len(merged.warnings) <= LARGEST_WARNING
    assert merge(SETTINGS, WELL, None).warnings == ""


def test_a_training_that_ends_without_a_report_is_not_said_to_be_unwatched() -> None:
    merged = merge(SETTINGS, [RankEnd(0, 0, leaves_no_report=True), RankEnd(1, 0)], None)
    assert merged.ending is Ending.SUCCEEDED
    assert "left without a report, as os._exit does" in merged.warnings
    assert "PYTHONPATH" not in merged.warnings
    assert len(merged.warnings) <= LARGEST_WARNING


def test_the_fullest_device_counts_and_the_retries_of_any_rank() -> None:
    crowded = Memory(peak_reserved_bytes=72, non_torch_bytes=6, alloc_retries=0)
    struggling = Memory(peak_reserved_bytes=73, non_torch_bytes=1, alloc_retries=5)
    ends = [RankEnd(rank, 0, (report(rank, memory=each),)) for rank, each in enumerate((crowded, struggling))]
    assert merge(SETTINGS, ends, None).memory == replace(crowded, alloc_retries=5)


def test_the_resumed_checkpoint_is_the_one_a_rank_loaded() -> None:
    settings = replace(SETTINGS, resume_from=Path("/saves/8"), resume_samples=128)
    for loaded, resumed in (((128, None), 128), ((0, None), 0), ((None, None), None)):
        ends = [RankEnd(rank, 0, (report(rank, resumed_samples=each),)) for rank, each in enumerate(loaded)]
        assert merge(settings, ends, None).resumed_samples == resumed


def test_the_samples_of_a_node_are_those_of_all_its_ranks() -> None:
    shares: list[tuple[tuple[int | None, int | None], int | None]] = [((60, 55), 115), ((0, 0), 0), ((60, None), None)]
    for trained, of_all in shares:
        ends = [RankEnd(rank, 0, (report(rank, trained_samples=each),)) for rank, each in enumerate(trained)]
        assert merge(SETTINGS, ends, None).trained_samples == of_all
    assert merge(SETTINGS, [RankEnd(0, 0, (report(0, total_samples=60),))], None).total_samples is None


def test_an_emulated_rank_stands_for_all_ranks_of_all_nodes() -> None:
    """As its checkpoints do, whose samples are those of the whole training."""
    alone = [RankEnd(0, 0, (report(0, trained_samples=60, total_samples=80, checkpoint_samples=240),))]
    for nodes, per_node in ((4, 1), (2, 2), (1, 4)):
        settings = replace(EMULATED, global_batch=32, nodes=nodes, gpus_per_node=per_node)
        merged = merge(settings, alone, None)
        assert (merged.trained_samples, merged.total_samples, merged.checkpoint_samples) == (240, 320, 240)
    assert merge(EMULATED, [RankEnd(0, 0, (report(0),))], None).trained_samples is None


def test_a_failure_has_the_failed_ranks_words_and_the_fullest_ranks_memory() -> None:
    failed = replace(OOM, memory=Memory(peak_reserved_bytes=50, failed_request_bytes=7))
    merged = merge(SETTINGS, [RankEnd(0, 85, (failed,), log="a\nb"), STOPPED], None)
    assert (merged.ending, merged.exit_code, merged.rank) == (Ending.DEVICE_OOM, 85, 0)
    assert (merged.message, merged.log_tail) == ("CUDA out of memory", "a\nb")
    assert (merged.memory.peak_reserved_bytes, merged.memory.failed_request_bytes) == (101, 7)
    assert merged.largest == (ReportedComponent("weights", 9),)


def test_a_hang_stays_the_verdict_after_sigterm() -> None:
    hung = report(0, 2, Ending.HUNG, exit_code=87, message="no optimizer step")
    for code in (0, 87, 137, 143):  # a handler may call os._exit(0), or a shell go on
        merged = merge(SETTINGS, [RankEnd(0, code, (hung, report(0, 9))), STOPPED], None)
        assert (merged.ending, merged.exit_code, merged.rank) == (Ending.HUNG, 87, 0)


def test_a_shell_that_is_alone_may_make_up_for_a_hang() -> None:
    reports = (report(0, 2, Ending.HUNG, exit_code=87, message="no optimizer step"), report(0, 9))
    merged = merge(SETTINGS, [RankEnd(0, 0, reports, may_outlive_hang=True)], None)
    assert (merged.ending, merged.exit_code, merged.steps) == (Ending.SUCCEEDED, 0, 9)
    for code, kept in ((87, reports), (0, reports[:1])):
        merged = merge(SETTINGS, [RankEnd(0, code, kept, may_outlive_hang=True)], None)
        assert (merged.ending, merged.exit_code) == (Ending.HUNG, 87)


def test_a_shell_that_hides_the_failure_of_all_its_programs_has_not_succeeded() -> None:
    prepared = report(0, 0, Ending.ERROR, exit_code=4, message="no data")
    merged = merge(SETTINGS, [RankEnd(0, 0, (prepared, OOM)), STOPPED], None)
    assert (merged.ending, merged.exit_code, merged.message) == (Ending.DEVICE_OOM, 85, "CUDA out of memory")
    merged = merge(SETTINGS, [RankEnd(0, 0, (prepared, OOM, report(0, 0)))], None)
    assert (merged.ending, merged.exit_code) == (Ending.SUCCEEDED, 0)


def test_the_last_program_of_a_shell_says_why_it_failed() -> None:
    refused = report(0, None, Ending.ERROR, exit_code=2, message="unrecognized arguments: --nope", bad_command=True)
    failed = report(0, None, Ending.HOST_OOM, exit_code=86, message="MemoryError")
    merged = merge(SETTINGS, [RankEnd(0, 86, (refused, failed)), STOPPED], None)
    assert (merged.ending, merged.message, merged.bad_command) == (Ending.HOST_OOM, "MemoryError", None)


def test_the_cause_comes_before_its_consequences_and_stopped_ranks() -> None:
    echo = RankEnd(1, 1, (report(1, 2, Ending.ERROR, exit_code=1, message="DistBackendError: x"),), log="Broken pipe")
    merged = merge(SETTINGS, [STOPPED, echo, RankEnd(0, 85, (OOM,))], None)
    assert (merged.ending, merged.rank) == (Ending.DEVICE_OOM, 0)
    assert merge(SETTINGS, [STOPPED, echo], None).message == "DistBackendError: x"


def test_a_rank_without_a_report_is_described_by_its_exit() -> None:
    merged = merge(SETTINGS, [RankEnd(1, 139, (), log="Fatal Python error"), *WELL[:1]], None)
    assert (merged.ending, merged.exit_code, merged.rank) == (Ending.KILLED, 139, 1)
    assert "SIGSEGV" in merged.message
    # A report of success does not hide a crash at the very end.
    merged = merge(SETTINGS, [RankEnd(0, 134, (report(0),), log="std::bad_alloc")], None)
    assert (merged.ending, merged.exit_code) == (Ending.HOST_OOM, 86)


def test_the_log_tail_can_be_left_out() -> None:
    merged = merge(replace(SETTINGS, report_log_tail=False), [RankEnd(0, 85, (OOM,), log="secret")], None)
    assert merged.log_tail == ""


@pytest.mark.parametrize(
    ("ended", "code", "message"),
    [
        (Ended(0, Ending.TERMINATED, 143, "SIGTERM from outside"), 143, "SIGTERM from outside"),
        (Ended(1, Ending.TERMINATED, 143, "node 1 is lost"), 143, "node 1 is lost"),
        (
            Ended(1, Ending.DEVICE_OOM, 85, "no"),
            85,
            "ended with the run: node 1 ended first (device-oom): no",
        ),
    ],
)
def test_an_end_from_outside_is_no_failure_of_ranks(ended: Ended, code: int, message: str) -> None:
    merged = merge(SETTINGS, [STOPPED], ended)
    assert (merged.ending, merged.exit_code, merged.message, merged.steps) == (Ending.TERMINATED, code, message, 3)


def test_the_report_that_fits_a_ranks_end_counts() -> None:
    several = (report(0, 0, Ending.ERROR, exit_code=4, message="no data"), report(0, 9), report(0, 0))
    assert merge(SETTINGS, [RankEnd(0, 0, several)], None).steps == 9
    assert merge(SETTINGS, [RankEnd(0, 4, several)], None).message == "no data"


def test_a_probe_that_trained_nothing_is_no_measurement() -> None:
    for end, words in [
        (RankEnd(0, 0), "in no Python of the command"),
        (RankEnd(0, 0, leaves_no_report=True), "without a report, as os._exit does"),
        (RankEnd(0, 0, (report(0, 0),)), "never stepped"),
    ]:
        merged = merge(PROBE, [end], None)
        assert (merged.ending, merged.exit_code) == (Ending.BAD_INPUT, 88)
        assert words in merged.message
    assert merge(SETTINGS, [RankEnd(0, 0)], None).ending is Ending.SUCCEEDED


def test_an_ending_reaches_other_nodes_unchanged() -> None:
    ended = Ended(3, Ending.HOST_OOM, 86, "é", is_graceful=True)
    assert Ended.from_json(ended.to_json().encode()) == ended


def test_a_log_tail_has_at_most_twenty_lines() -> None:
    assert log_tail("\n".join(map(str, range(30)))).split("\n")[0] == "10"
