"""First scores: one for each source, kept as they were."""

from __future__ import annotations

from pathlib import Path

import first_scores
import pytest
from accuracy_cells import Cells
from accuracy_rows import Row, read_row

LINE = {
    "id": "one", "model": "llama2-7b", "params_b": "6.74", "hidden": "4096", "layers": "32", "heads": "32",
    "vocab": "32000", "metric": "allocated", "peak_bytes": "60e9", "source": "owner/project file.md@abc",
}  # fmt: skip


def row(**changes: str) -> Row:
    return read_row(Cells({**LINE, **changes}))


def score(measured: int, source: str = "a") -> first_scores.FirstScore:
    return first_scores.FirstScore(source, "one", "allocated", measured, 80, 100, 120, "abc", "2026-11-24")


def test_a_source_is_scored_with_the_formulas_and_the_day_beside_it() -> None:
    scores = first_scores.first_scores("project", [row(), row(id="two", source="owner/other x@1")], [], "abc")
    assert [(each.source, each.id, each.measured, each.formulas) for each in scores] == [
        ("project", "one", 60_000_000_000, "abc")
    ]
    assert scores[0].lower < scores[0].expected < scores[0].upper


def test_a_source_has_one_first_score() -> None:
    kept = first_scores.first_scores("project", [row()], [], "abc")
    with pytest.raises(ValueError, match="project has its first score already"):
        first_scores.first_scores("project", [row(id="another")], kept, "def")


def test_a_source_without_rows_is_named() -> None:
    with pytest.raises(ValueError, match="no row of elsewhere; known are project"):
        first_scores.first_scores("elsewhere", [row()], [], "abc")


def test_scores_are_appended(tmp_path: Path) -> None:
    path = tmp_path / "scores.csv"
    first_scores.keep([score(110)], path)
    before = path.read_text()
    first_scores.keep([score(130, "b")], path)
    assert path.read_text().startswith(before)
    assert first_scores.read_scores(path) == [score(110), score(130, "b")]


def test_formulas_that_are_not_committed_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_scores, "_git", lambda *_: " M core/memtune/plans/plan.py")
    with pytest.raises(ValueError, match="commit the formulas before a source is scored"):
        first_scores.committed_formulas()


def test_the_summary_counts_truths_above_the_upper_bound() -> None:
    line = first_scores.summary([score(110), score(130, "b")])
    assert line.startswith("n=2 sources=2 ")
    assert " above_upper=50.00 " in line
    assert line.endswith(" width=1.500")
    assert "| one | allocated | 0.00 | 0.00 | 0.00 | 0.00 | -23.1%, above upper |" in first_scores.page([score(130)])
