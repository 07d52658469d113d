"""The documented accuracy is that of the published peaks in the repository."""

from __future__ import annotations

import csv
import hashlib
import re
import statistics
from pathlib import Path

import accuracy
import accuracy_device
import first_scores
import pytest
from accuracy_rows import read_rows

ROOT = Path(__file__).parents[3]
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
    assert last in (ROOT / "bench/results/accuracy.md").read_text().splitlines()
    assert f"| {last} |" in (ROOT / "docs" / "accuracy.md").read_text()


def test_the_documents_say_how_much_varying_lengths_matter(tmp_path: Path) -> None:
    silent = tmp_path / "silent.csv"
    silent.write_text(first_scores.UNSEEN.read_text(encoding="utf-8").replace("lengths vary", ""), encoding="utf-8")
    above, errors = [], []
    for file in (first_scores.UNSEEN, silent):
        scored, _ = accuracy.score(read_rows(file)[0], leave_one_source_out=False)
        rows = len(scored)
        under = [one.row.source for one in scored if one.is_under]
        above += [(len(under), sum("ms-swift" in source for source in under))]
        errors += [statistics.median(abs(one.interval.expected / one.row.peak_bytes - 1) for one in scored)]
    (told, told_swift), (left_out, left_out_swift) = above
    page = " ".join((ROOT / "docs" / "accuracy.md").read_text().split())
    assert f"{told_swift} of their peaks are above the upper bound, and with it left out {left_out_swift}." in page
    assert f"that is {told} ({told / rows:.1%}) and {left_out} ({left_out / rows:.1%})" in page
    assert f"with a median error of {errors[0]:.1%} and {errors[1]:.1%}:" in page
    assert f"{told}, or {left_out} if the jobs whose batches" in " ".join((ROOT / "README.md").read_text().split())


def test_every_unseen_peak_can_be_scored_and_names_its_source() -> None:
    rows, remarks = read_rows(first_scores.UNSEEN)
    assert remarks == []
    assert len({row.id for row in rows}) == len(rows)
    with first_scores.UNSEEN.open(newline="", encoding="utf-8") as file:
        sources = [row["source"] for row in csv.DictReader(file)]
    commit, pages = r"@[0-9a-f]{7,}", r"/(pull|issues)/\d+|wiki/[\w-]+ \(revision of"
    named = rf"{commit}|{pages}|gist\.github\.com/\w+/[0-9a-f]{{32}}"
    assert [source for source in sources if not re.search(named, source)] == []


def test_no_constant_is_fitted_on_a_source_that_has_a_first_score() -> None:
    fitted, _ = read_rows(PEAKS)
    unseen, _ = read_rows(first_scores.UNSEEN)
    assert {row.source for row in fitted} & {row.source for row in unseen} == set()


def test_every_first_score_has_its_row_and_every_row_its_first_score() -> None:
    rows, _ = read_rows(first_scores.UNSEEN)
    kept = {(score.source, score.id, score.metric, score.measured) for score in first_scores.read_scores()}
    assert kept == {(row.source, row.id, row.metric, row.peak_bytes) for row in rows}


def test_first_scores_are_only_ever_appended_to() -> None:
    # The first eight sources and the table's head; later sources follow and change nothing here.
    first = first_scores.SCORES.read_bytes().splitlines(keepends=True)[:166]
    assert (
        hashlib.sha256(b"".join(first)).hexdigest()
        == "34c5f4b337cd219985d9abcdd3345d0a3ad97c94a64c1fc48c91f13adccd05c9"
    )


def test_the_documents_quote_the_first_scores(capsys: pytest.CaptureFixture[str]) -> None:
    first_scores.main([])
    page = capsys.readouterr().out
    assert (ROOT / "bench/results/first-scores.md").read_text() == page
    scores = first_scores.read_scores()
    document = (ROOT / "docs" / "accuracy.md").read_text()
    assert f"| {first_scores.summary(scores)} |" in document
    assert "\n".join(first_scores.rounds(scores)) in document


def test_the_readme_quotes_the_first_scores() -> None:
    scores = first_scores.read_scores()
    newest = first_scores.newest(scores)
    readme = " ".join((ROOT / "README.md").read_text().split())
    for found, words in (
        (scores, "{n} published peaks of {sources} sources"),
        (
            scores,
            "the median error was {median:.1%}, the 90th percentile {p90:.0%}, and {above:.0%} of the peaks lay above",
        ),
        (newest, "{n} peaks of {sources} sources"),
        (
            newest,
            "the median error was {median:.1%}, the 90th percentile {p90:.0%}, and {above:.0%} of the peaks lay above",
        ),
    ):
        errors = [score.error for score in found]
        assert (
            words.format(
                n=len(found),
                sources=len({score.source for score in found}),
                median=statistics.median(errors),
                p90=accuracy.quantile(errors, 0.9),
                above=sum(score.is_above for score in found) / len(found),
            )
            in readme
        )


def test_the_documents_quote_the_scores_of_device(capsys: pytest.CaptureFixture[str]) -> None:
    accuracy_device.main()
    lines = capsys.readouterr().out.splitlines()
    document = (ROOT / "docs" / "accuracy.md").read_text()
    assert f"| {lines[-1]} |" in document
    assert [line for line in lines[: lines.index("")] if line not in document.splitlines()] == []
