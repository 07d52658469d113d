"""The accuracy that the documents claim is what the published peaks in the repository give."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import accuracy
import pytest
from accuracy_rows import read_rows

ROOT = Path(__file__).parents[2]
PEAKS = ROOT / "bench" / "data" / "measured_memory.csv"


def test_every_peak_can_be_scored_and_names_its_source() -> None:
    rows, remarks = read_rows(PEAKS)
    assert (len(rows), remarks) == (102, [])
    # A commit, or a pull request, which has commits.
    with PEAKS.open(newline="", encoding="utf-8") as file:
        sources = [row["source"] for row in csv.DictReader(file)]
    assert [source for source in sources if not re.search(r"@[0-9a-f]{7,}|/pull/\d+", source)] == []


def test_the_documents_quote_the_last_line(capsys: pytest.CaptureFixture[str]) -> None:
    accuracy.main([str(PEAKS), "--leave-one-source-out"])
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("n=102 ")
    for document in ("README.md", "bench/results/accuracy.md"):
        assert last in (ROOT / document).read_text().splitlines(), document
    assert f"| {last} |" in (ROOT / "docs" / "accuracy.md").read_text()
