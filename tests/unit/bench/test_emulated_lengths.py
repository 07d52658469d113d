"""The cases of varying lengths, and that the page has what was run."""

from __future__ import annotations

from pathlib import Path

import emulated_lengths
from emulated_lengths import Case, Result
from emulated_pair_list import Pair

ROOT = Path(__file__).parents[3]


def test_every_case_was_run_and_is_on_the_page() -> None:
    found = {each.case: each for each in emulated_lengths.read()}
    assert found.keys() == set(emulated_lengths.cases())
    lines = list(emulated_lengths.page([found[case] for case in emulated_lengths.cases()]))
    assert (ROOT / "bench" / "results" / "emulated-lengths.md").read_text(encoding="utf-8") == "\n".join(lines) + "\n"
    summary = next(line for line in lines if line.startswith("n="))
    assert f"| {summary} |" in (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")


def test_a_case_becomes_the_arguments_of_its_script() -> None:
    case = Case(Pair("model", "bf16-ddp-none-mb1x1", 8), "uniform", 2, 40, needed=True)
    assert case.words == "bf16-ddp-none-mb1x1:8:uniform:2:40:needed"
    assert case._replace(needed=False).words == "bf16-ddp-none-mb1x1:8:uniform:2:40"


def test_kept_memory_is_a_share_of_the_allocated_bytes() -> None:
    case = Case(Pair("model", "bf16-ddp-none-mb1x1", 1), "uniform", 1, 100)
    assert Result(case, 400, 1000, {}, 0).kept == 1.5
