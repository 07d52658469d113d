"""What `make test` tells of stages that share one call of pytest."""

from __future__ import annotations

from pathlib import Path

from tools.run_tests import Outcome, Stage, outcomes_of

STAGES = [Stage("scripts", pooled=True), Stage("contract", pooled=True)]
CASES = """<testsuites><testsuite>
<testcase classname="tests.scripts.test_trl" name="test_a" time="2.5"/>
<testcase classname="tests.contract.cli.test_b" name="test_b" time="1.0"><{ending}/></testcase>
<testcase classname="tests.contract.cli.test_b" name="test_c" time="0.5"/>
</testsuite></testsuites>"""


def told(directory: Path, ending: str) -> Path:
    file = directory / "tests.xml"
    file.write_text(CASES.format(ending=ending))
    return file


def test_a_stage_has_the_seconds_and_the_failures_of_its_own_tests(tmp_path: Path) -> None:
    assert outcomes_of(STAGES, told(tmp_path, "failure"), 1, 9.0) == [
        Outcome("scripts", "passed", 2.5),
        Outcome("contract", "failed", 1.5),
    ]
    assert outcomes_of(STAGES, told(tmp_path, "error"), 1, 9.0)[1].result == "failed"


def test_skipped_tests_are_counted(tmp_path: Path) -> None:
    assert [each.skipped_tests for each in outcomes_of(STAGES, told(tmp_path, "skipped"), 0, 9.0)] == [0, 1]


def test_a_stage_that_has_a_call_for_itself_has_its_seconds(tmp_path: Path) -> None:
    assert outcomes_of(STAGES[1:], told(tmp_path, "properties"), 0, 9.0) == [Outcome("contract", "passed", 9.0)]


def test_a_call_that_ended_early_has_failed_for_all_of_its_stages(tmp_path: Path) -> None:
    assert [each.result for each in outcomes_of(STAGES, told(tmp_path, "properties"), 2, 9.0)] == ["failed", "failed"]
    assert [each.result for each in outcomes_of(STAGES, told(tmp_path, "failure"), 3, 9.0)] == ["failed", "failed"]
    assert [each.result for each in outcomes_of(STAGES, tmp_path / "none.xml", 3, 9.0)] == ["failed", "failed"]
