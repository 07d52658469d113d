"""A training that loses a GPU and gets it back, from two ranks to one to two, has one loss curve.

Each resume is saved and resumed again, by other ranks under other plans, through the table's conversions.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from engine_ranks import GLOBAL_BATCH, LAST_LR, SHORT_BATCH, STEPS, settings_of
from engine_suite import reference, trained_by_ranks
from warm_environment import forked_conversions

from memtune.plans.plan import Plan
from memtune_runner.checkpoints import resolve

WORLDS = (2, 1, 2)


class Chain(NamedTuple):
    """The plans of two ranks, of one, and of two again; how often a checkpoint must be converted between them."""

    plans: tuple[str, str, str]
    conversions: int = 0


CHAINS = [
    Chain(("fp32-fsdphyb-none-mb4x1", "fp32-ddp-full-mb2x4", "fp32-fsdpsgo-none-mb2x2")),
    Chain(("fp32-z1-none-mb2x2", "fp32-z2-full-mb2x4", "fp32-z3-none-mb4x1"), 2),
    Chain(("fp32-z3-none-mb2x2", "fp32-z3-full-mb4x2", "fp32-z3-none-mb1x4"), 2),
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("chains")


@cache
def link(place: int, directory: Path) -> dict[int, dict[str, Any]]:
    """Return each chain's result at one of its three places, from one start of the processes."""
    there = [number for number in range(len(CHAINS)) if _is_there(number, place, directory)]
    tasks = {number: _task(number, place, directory) for number in there}
    told = trained_by_ranks(directory / f"ranks-{place}", WORLDS[place], list(tasks.values()))
    return {number: told[task] for number, task in tasks.items()}


def _is_there(number: int, place: int, directory: Path) -> bool:
    return not place or "error" not in link(place - 1, directory).get(number, {"error": "it ended before"})


def _task(number: int, place: int, directory: Path) -> str:
    plan, target = CHAINS[number].plans[place], f" to {directory}/{number}-{place}" if place < 2 else ""
    return f"{plan} from {_source(number, place, directory)}{target}" if place else f"{plan}{target}"


@cache
def _source(number: int, place: int, directory: Path) -> Path:
    """Return what a place of a chain resumes from: a save or its conversion."""
    plan = Plan.parse(CHAINS[number].plans[place])
    with forked_conversions():
        found = resolve(settings_of(plan, WORLDS[place], resume_from=directory / f"{number}-{place - 1}"))
    assert found is not None
    return found.directory


@pytest.mark.parametrize("number", range(len(CHAINS)), ids=["-".join(each.plans) for each in CHAINS])
def test_a_relaunch_continues_with_the_same_loss(number: int, directory: Path) -> None:
    links = [link(place, directory).get(number, {}) for place in range(len(WORLDS))]
    assert [each["error"] for each in links if "error" in each] == []
    assert [loss for each in links for loss in each["losses"]] == pytest.approx(reference().losses, rel=1e-5)
    assert links[-1]["samples"] == STEPS // 5 * (4 * GLOBAL_BATCH + SHORT_BATCH)
    assert links[-1]["lr"] == pytest.approx(LAST_LR), "the schedule goes on as well"
    sources = [_source(number, place, directory) for place in (1, 2)]
    assert sum(each.name.endswith("-universal") for each in sources) == CHAINS[number].conversions
