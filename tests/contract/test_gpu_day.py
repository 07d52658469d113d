"""The commands of a GPU day: what they do when a part fails, hangs or finds no time, and what is carried along."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gpu_day import collect, commands, prepare
from gpu_day.commands import Part, run
from gpu_day.places import MEASURED, ROOT


def outcomes(parts: tuple[Part, ...], seconds: float, results: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(commands, "COMMANDS", {"1": parts})
    monkeypatch.setattr(commands, "_install_missing", lambda: None)
    code = run("1", results, seconds)
    return code, json.loads((results / "1.json").read_text())["parts"]


def test_a_part_that_fails_or_hangs_is_told_of_and_the_next_one_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = (
        Part("fails", ("-c", "raise SystemExit(3)"), 30),
        Part("hangs", ("-c", "import time; print('hangs', flush=True); time.sleep(60)"), 2),
        Part("tells", ("-c", "print('{\"bytes\": 7}'); print('the end')"), 30, tells=True),
    )
    code, found = outcomes(parts, 60, tmp_path / "new", monkeypatch)
    assert code == 1
    assert [each["outcome"] for each in found] == ["failed with 3", "cut off after 2 s", "ended well"]
    assert [each["told"] for each in found] == [None, None, {"bytes": 7}]
    assert "== hangs: -c" in (tmp_path / "new" / "1.log").read_text()
    assert sorted(each.name for each in (tmp_path / "new").iterdir()) == ["1.json", "1.log"]


def test_what_finds_no_time_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, found = outcomes((Part("late", ("-c", ""), 30),), 1, tmp_path, monkeypatch)
    assert (code, found) == (1, [{"name": "late", "outcome": "no time was left"}])


def test_every_package_that_is_carried_along_is_pinned() -> None:
    names = f"{prepare._PURE} {prepare._BINARY}".split()
    assert len(names) == len(set(names)) > 20
    assert [name for name in names if not prepare._pinned(name).startswith(f"{name}==")] == []
    with pytest.raises(ValueError, match=r"tools/dev\.lock has no left-pad"):
        prepare._pinned("left-pad")


def test_without_results_there_is_nothing_to_collect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert collect.collect(tmp_path, tmp_path / "into") == 1
    assert f"gpu-day: {tmp_path} has no 1.json or 2.json or 3.json" in capsys.readouterr().err
    assert not (tmp_path / "into").exists()


def test_a_rehearsal_is_not_collected_among_what_was_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "2.json").write_text('{"rehearsal": true, "parts": []}')
    assert collect.collect(tmp_path, ROOT / MEASURED) == 1
    assert "is of a rehearsal: nothing was measured; name another directory by --into" in capsys.readouterr().err
