"""The pairs that bench/emulated_pairs.py compares with the emulated GPU, and the page of their peaks."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from emulated_pair_list import MODELS, PAIRS, Pair, prediction
from emulated_pairs import _FILE, page, read, score

from memtune.plans.plan import Plan
from memtune.units import GIB

_PAIR = Pair("llama-1.1b", "bf16-ddp-none-mb1x1", 1)


def test_there_are_two_hundred_pairs_of_every_kind() -> None:
    assert len(set(PAIRS)) == len(PAIRS) == 223
    assert {pair.ranks for pair in PAIRS} == {1, 2, 8, 64}
    plans = [Plan.parse(pair.plan) for pair in PAIRS]
    assert {str(plan.sharding) for plan in plans} == {"ddp", "z0", "z1", "z2", "z3", "fsdp", "fsdpsgo", "fsdphyb"}
    assert {plan.checkpointing.mode for plan in plans} == {"none", "selective", "full", "every"}
    families = Counter(MODELS[pair.model].family for pair in PAIRS)
    assert min(families.values()) >= 10


@pytest.mark.parametrize("pair", [pair for pair in PAIRS if MODELS[pair.model].config], ids=str)
def test_formulas_know_each_pair(pair: Pair) -> None:
    found = prediction(pair)
    assert 0 < found.allocated.expected < found.reserved.expected <= found.reserved.upper


def test_formulas_count_the_backward_pass_of_short_sequences() -> None:
    found = [each for each in score(read(_FILE).values()) if each.result.pair.model.startswith("llama-3b")]
    assert len(found) == 19
    assert max(abs(each.allocated_error) for each in found) < 0.02


def told(**values: object) -> str:
    return json.dumps({"model": _PAIR.model, "plan": _PAIR.plan, "ranks": _PAIR.ranks, **values})


def took(reserved_gib: float, **values: object) -> str:
    sizes = {"allocatedBytes": int(reserved_gib * GIB) - 1, "reservedBytes": int(reserved_gib * GIB)}
    return told(**sizes, seconds=3.0, cpuSeconds=2.5, hostBytes=GIB, **values)


def test_the_last_result_of_a_pair_counts(tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    assert read(file) == {}
    file.write_text("\n".join([told(problem="it broke"), took(20), took(30)]), encoding="utf-8")
    assert read(file)[_PAIR].reserved_bytes == 30 * GIB
    file.write_text(told(problem="it broke"), encoding="utf-8")
    assert read(file)[_PAIR].problem == "it broke"


def test_the_page_lists_peaks_above_the_upper_bound_and_missing_ones(tmp_path: Path) -> None:
    upper = prediction(_PAIR).reserved.upper
    file = tmp_path / "pairs.jsonl"
    file.write_text(took(1.01 * upper / GIB), encoding="utf-8")
    results = list(read(file).values())
    assert score(results)[0].error < 0
    text = "\n".join(page(results, [PAIRS[1]]))
    assert "| decoder | 1 |" in text
    assert "| 1 (100%) |" in text
    assert f"- {PAIRS[1]}" in text
    assert "| llama-1.1b | 1 | 3 | 3 | 2 | 2 | 50 | 1.0 GiB |" in text
    assert "Could not be run" not in text


def test_a_pair_that_failed_is_named_and_not_scored(tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text(told(problem="it broke"), encoding="utf-8")
    results = list(read(file).values())
    assert score(results) == []
    assert f"- {_PAIR}: it broke" in "\n".join(page(results, []))
