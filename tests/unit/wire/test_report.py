"""The report, written and read back: whole, short, cut anywhere, and forged."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from malformed_texts import texts

from memtune.wire.probe_pruning import Pruned
from memtune.wire.report import (
    LOG_TAIL_BYTES,
    MOST_STEPS,
    TERMINATION_MESSAGE_BYTES,
    Applied,
    Device,
    Ending,
    MeasuredStep,
    Memory,
    Phase,
    Report,
    ReportedComponent,
    read_report,
)
from memtune.wire.report_checks import LARGEST_COUNT, ReportError
from memtune.words import shortened
from memtune_runner.launch.merge_reports import log_tail
from memtune_runner.launch.write_report import termination_message
from memtune_runner.rank.ranks import whole

NASTY = texts(900)
COUNT = st.none() | st.integers(0, LARGEST_COUNT)

OOM = Report(
    ending=Ending.DEVICE_OOM,
    exit_code=85,
    plan="bf16-z2-sel-mb4x8",
    rank=3,
    world=8,
    attempt=1,
    steps=12,
    phase=Phase.BACKWARD,
    device=Device.VIRTUAL,
    memory=Memory(device_total_bytes=2**31, peak_reserved_bytes=2**31 - 5, alloc_retries=1),
    applied=Applied(micro_batch=4, micro_steps=8, backend="deepspeed", zero_stage=2, weight_dtype="bfloat16"),
    length_covered=True,
    step_seconds=0.25,
    message="CUDA out of memory. Tried to allocate 20.00 MiB.",
    largest=(ReportedComponent("activations", 10**9), ReportedComponent("weights", 10**8)),
    log_tail="last words",
)

REPORTS = st.builds(
    Report,
    ending=st.sampled_from(Ending),
    exit_code=st.integers(0, 255),
    plan=st.none() | st.text("az09.+-", min_size=1, max_size=120),
    steps=COUNT,
    memory=st.builds(Memory, peak_active_bytes=COUNT, non_torch_bytes=COUNT),
    step_seconds=st.none() | st.floats(0, LARGEST_COUNT),
    message=NASTY,
    pruned=st.none() | st.sampled_from(Pruned),
    largest=st.lists(st.builds(ReportedComponent, NASTY, st.integers(0, LARGEST_COUNT)), max_size=5).map(tuple),
    measured_steps=st.lists(
        st.builds(MeasuredStep, st.integers(1, 100), st.floats(0, LARGEST_COUNT), st.integers(0, LARGEST_COUNT)),
        max_size=MOST_STEPS,
    ).map(tuple),
    log_tail=NASTY,
)


@given(REPORTS)
def test_whole_report_is_read_back_as_it_was(report: Report) -> None:
    line = whole(report)
    assert line.isascii()
    assert "\n" not in line
    assert read_report(line) == report
    report.message.encode("utf-8")


@given(REPORTS)
def test_short_report_fits_and_keeps_every_number(report: Report) -> None:
    message = termination_message(report)
    assert message.isascii()
    assert len(message) <= TERMINATION_MESSAGE_BYTES
    short = read_report(message)
    assert short.message == shortened(report.message, len(short.message))
    assert report.log_tail.endswith(short.log_tail)
    assert short.largest == report.largest[: len(short.largest)]
    assert short.measured_steps == report.measured_steps[: len(short.measured_steps)]
    without: dict[str, Any] = {"message": "", "largest": (), "measured_steps": (), "log_tail": ""}
    assert replace(short, **without) == replace(report, **without)


def test_a_long_message_loses_whole_words_and_says_so() -> None:
    first = "CUDA out of memory. Tried to allocate 20.00 MiB."
    message = f"{first} {'(This GPU is virtual: CPU tensors are counted against a budget.) ' * 20}"
    short = read_report(termination_message(replace(OOM, message=message))).message
    kept = short.removesuffix("...")
    assert len(first) < len(kept) < len(short)
    assert message.startswith(f"{kept} "), "a word was cut"


@pytest.mark.parametrize(
    ("longest", "expected"),
    [(17, "a cat and its dog"), (16, "a cat and its..."), (12, "a cat and..."), (5, "a ..."), (1, "."), (0, "")],
)
def test_a_text_is_shortened_at_a_word(longest: int, expected: str) -> None:
    assert shortened("a cat and its dog", longest) == expected
    assert shortened("/a/path/to/somewhere", 12) == "/a/path/t..."


def test_a_success_has_all_of_its_steps_in_the_short_form_too() -> None:
    steps = tuple(MeasuredStep(100 - place, 1234.567891, 141 * 10**9 + place) for place in range(MOST_STEPS))
    memory = Memory(**{each.name: 141 * 10**9 for each in fields(Memory)})
    success = replace(OOM, ending=Ending.SUCCEEDED, exit_code=0, memory=memory, message="", largest=(), log_tail="")
    assert read_report(termination_message(replace(success, measured_steps=steps))).measured_steps == steps


def test_the_longest_report_fits_too() -> None:
    largest: dict[str, Any] = dict.fromkeys(("rank", "world", "attempt", "steps"), LARGEST_COUNT)
    largest |= dict.fromkeys(("length_covered", "evaluation_covered", "save_covered"), False)
    largest |= dict.fromkeys(("step_seconds", "tokens_per_second"), 1.2345678901234567e17)
    applied: dict[str, Any] = {each.name: LARGEST_COUNT for each in fields(Applied)}
    applied |= {"expandable_segments": False, "fused_loss": False}
    words = ("backend", "sharding", "weight_dtype", "gradient_dtype", "compute_dtype", "optimizer", "attention")
    applied |= dict.fromkeys(words, "w" * 16)
    report = Report(
        Ending.DEVICE_OOM,
        255,
        plan="p" * 120,
        phase=Phase.OPTIMIZER_STEP,
        device=Device.VIRTUAL,
        memory=Memory(**{each.name: LARGEST_COUNT for each in fields(Memory)}),
        applied=Applied(**applied),
        message="\N{PILE OF POO}" * 10_000,
        log_tail="\N{PILE OF POO}" * 10_000,
        **largest,
    )
    assert TERMINATION_MESSAGE_BYTES - 40 <= len(termination_message(report)) <= TERMINATION_MESSAGE_BYTES


def test_verdict_fields_come_first() -> None:
    assert list(json.loads(termination_message(OOM)))[:4] == ["version", "ending", "exitCode", "plan"]


@pytest.mark.parametrize("form", [whole, termination_message])
def test_every_prefix_that_holds_the_verdict_is_read(form: Any) -> None:
    line = form(OOM)
    verdict_ends = line.index(',"plan"')
    for end in range(verdict_ends + 1, len(line)):
        report = read_report(line[:end].encode())
        assert (report.ending, report.exit_code) == (Ending.DEVICE_OOM, 85)
        for each in fields(Report):
            value = getattr(report, each.name)
            if not isinstance(value, (Memory, Applied, tuple)):
                assert value in (None, "", getattr(OOM, each.name))
    for end in range(verdict_ends):
        with pytest.raises(ReportError):
            read_report(line[:end])


def test_a_part_that_was_cut_is_none_so_that_half_a_measurement_is_not_taken_for_all_of_it() -> None:
    line = whole(OOM)
    report = read_report(line[: line.index('"peakReservedBytes"') + 25])
    assert (report.memory, report.phase) == (Memory(), OOM.phase)
    report = read_report(line[: line.index('"weights"') + 12])
    assert (report.memory, report.largest) == (OOM.memory, ())


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"version": 2}, "not a report of version 1"),
        ({"ending": "fine"}, "ending: 'fine' is not one of succeeded"),
        ({"ending": ["succeeded"]}, "ending: a value of type list"),
        ({"exitCode": 256}, "exitCode: .* is not an exit code"),
        ({"exitCode": None}, "exitCode is missing"),
        ({"steps": True}, "steps: True is not a whole number"),
        ({"steps": -1}, "steps: .* is not a whole number"),
        ({"steps": 10**30}, "steps: .* is not a whole number"),
        ({"stepSeconds": -0.5}, "stepSeconds: -0.5 is not a number"),
        ({"lengthCovered": 1}, "lengthCovered: .* is neither true nor false"),
        ({"plan": "<script>"}, "plan: '<script>' is not a word"),
        ({"message": {}}, "message: a value of type dict is not a text"),
        ({"memory": []}, "memory: a value of type list is not an object"),
        ({"memory": {"peakActiveBytes": 0.5}}, "memory: peakActiveBytes: 0.5 is not a whole"),
        ({"largest": [["x", -1]]}, "largest: .* is not a whole number"),
        ({"largest": [["x", 1]] * 33}, "largest: .* at most 32"),
        ({"pruned": "boredom"}, "pruned: 'boredom' is not one of speed, memory"),
        ({"measuredSteps": [[1, 1.0, 1]] * 6}, "measuredSteps: .* at most 5 steps"),
        ({"measuredSteps": [[1, -1.0, 1]]}, "measuredSteps: -1.0 is not a number"),
    ],
)
def test_an_invalid_report_is_refused_by_field(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ReportError, match=complaint):
        read_report(json.dumps(json.loads(whole(OOM)) | change))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "{}",
        "Killed",
        "[" * 30_000,
        '{"a":' * 10_000,
        "{" + "," * 60_000,
        " " * 65_537,
        "\ud800",
        b"\xff",
    ],
)
def test_text_that_is_no_report_is_refused(text: str | bytes) -> None:
    with pytest.raises(ReportError):
        read_report(text)


def test_the_writer_is_held_to_the_same_ranges() -> None:
    with pytest.raises(ReportError, match=r"memory: peakActiveBytes: .* is not a whole number"):
        Report(Ending.SUCCEEDED, 0, memory=Memory(peak_active_bytes=-1))
    with pytest.raises(ReportError, match="exit_code: -9 is not an exit code"):
        Report(Ending.ERROR, -9)


def test_not_a_number_is_not_json() -> None:
    with pytest.raises(ReportError):
        read_report('{"stepSeconds":NaN,"version":1,"ending":"succeeded","exitCode":0}')


def test_fields_of_a_later_runner_are_passed_over() -> None:
    assert read_report(json.dumps(json.loads(whole(OOM)) | {"more": {"to": "come"}})) == OOM


def test_text_is_made_harmless() -> None:
    report = replace(OOM, message="\x1b[31mred\x00\ud800\n")
    assert report.message == "\ufffd[31mred\ufffd\ufffd\n"


def test_log_tail_is_the_end_of_the_log() -> None:
    log = "\n".join(f"line {number}" for number in range(100))
    assert log_tail(log).splitlines() == [f"line {number}" for number in range(80, 100)]
    assert log_tail("é" * 1000) == "é" * (LOG_TAIL_BYTES // 2)
    # It begins at a line's start, and cuts a longer line.
    lines = [f"{number} {'x' * 300}" for number in range(5)]
    assert log_tail("\n".join(lines)) == "\n".join(lines[-2:])
    assert log_tail(f"cut\n{'y' * LOG_TAIL_BYTES}") == "y" * LOG_TAIL_BYTES
