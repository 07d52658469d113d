"""Where the report is written."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from memtune.wire.report import LOG_MARK, Ending, Report, read_report
from memtune_runner.launch.write_report import write

OOM = Report(ending=Ending.DEVICE_OOM, exit_code=85, message="CUDA out of memory.\nTried é")


def test_the_report_is_written_to_each_place(tmp_path: Path) -> None:
    stream = io.StringIO()
    write(OOM, tmp_path / "termination-log", tmp_path / "report.json", stream)
    assert read_report((tmp_path / "termination-log").read_bytes()) == OOM
    assert read_report((tmp_path / "report.json").read_text()) == OOM
    mark, line = stream.getvalue()[: len(LOG_MARK)], stream.getvalue()[len(LOG_MARK) :]
    assert mark == LOG_MARK
    assert read_report(line) == OOM


def test_a_place_that_fails_keeps_the_others_from_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(OOM, tmp_path / "absent" / "termination-log", tmp_path / "report.json", io.StringIO())
    assert read_report((tmp_path / "report.json").read_text()) == OOM
    assert "absent/termination-log: No such file or directory" in capsys.readouterr().err
