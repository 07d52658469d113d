"""A resumed accelerate training continues within its epoch: each row is trained once in every epoch."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
import small_trainings

from memtune.wire.report import Ending

SCRIPT = Path(__file__).parents[2] / "support" / "programs" / "rows_of_epochs.py"
STEPS_OF_EPOCH, ROWS, EPOCHS = 8, 58, 3
Steps = dict[int, list[int]]


def train(plan: str, world: int, directory: Path, arguments: Sequence[str], **variables: str) -> Steps:
    """Return the rows that each optimizer step has trained, on all ranks."""
    variables = {"INTEGRATION": "accelerate", "CHECKPOINT_PATH": str(directory / "saves"), **variables}
    steps: Steps = {}
    for outcome in small_trainings.run(SCRIPT, plan, directory, world, arguments, **variables):
        assert outcome.report.ending is Ending.SUCCEEDED, outcome.output[-3000:]
        for step, rows in re.findall(r"^epoch \d+ step (\d+) rows \[(.*)\]$", outcome.output, re.MULTILINE):
            steps.setdefault(int(step), []).extend(map(int, rows.split(", ")))
    return steps


def interrupted(step: int, plans: tuple[str, str], directory: Path, arguments: Sequence[str], world: int = 1) -> Steps:
    """Return the rows of a training interrupted after a step and resumed under the second plan."""
    first = train(plans[0], world, directory, arguments, ATTEMPT="1")
    saved = directory / "saves" / f"step-{step}"
    variables = {"ATTEMPT": "2", "RESUME_FROM": str(saved), "RESUME_SAMPLES": str(step * 8)}
    rest = train(plans[1], world, directory, [*arguments, "--resume-from", str(saved)], **variables)
    assert min(rest) == step + 1
    steps = {**{each: rows for each, rows in first.items() if each <= step}, **rest}
    if world == 1:
        assert steps == first, "it is the order of a training that was not interrupted"
    return steps


def test_samples_that_the_script_drops_are_dropped_under_every_plan(tmp_path: Path) -> None:
    plans = "fp32-ddp-none-mb8x1", "fp32-ddp-none-mb1x8"
    steps = interrupted(10, plans, tmp_path, ["--batch", "4", "--drop-last"])
    assert sorted(steps) == list(range(1, 3 * 7 + 1)), "14 batches of 4 are 7 steps; 2 rows are dropped"
    for epoch in range(EPOCHS):
        rows = [row for step in range(epoch * 7 + 1, epoch * 7 + 8) for row in steps[step]]
        assert len(rows) == len(set(rows)) == 56


def test_samples_that_the_script_keeps_are_trained_under_every_plan(tmp_path: Path) -> None:
    steps = train("fp32-ddp-none-mb8x1", 1, tmp_path, ["--drop-last"], ATTEMPT="1")
    check_each_row_once_in_every_epoch(steps)


def check_each_row_once_in_every_epoch(steps: Steps, copies: Sequence[int] = (0, 0, 0)) -> None:
    """``copies`` are the rows that accelerate adds to each epoch, to fill the last batches of several ranks."""
    assert sorted(steps) == list(range(1, EPOCHS * STEPS_OF_EPOCH + 1))
    for epoch in range(EPOCHS):
        trained = Counter(row for step, rows in steps.items() if (step - 1) // STEPS_OF_EPOCH == epoch for row in rows)
        assert set(trained) == set(range(ROWS))
        assert trained.total() == ROWS + copies[epoch]


@pytest.mark.parametrize("arguments", [[], ["--shuffle", "generator"], ["--shuffle", "subset"], ["--by-hand"]])
def test_an_epoch_goes_on_in_its_order(arguments: list[str], tmp_path: Path) -> None:
    plans = "fp32-ddp-none-mb2x4", "fp32-ddp-none-mb2x4"
    check_each_row_once_in_every_epoch(interrupted(11, plans, tmp_path, arguments))


@pytest.mark.parametrize("shuffle", ["plain", "seedable"])
@pytest.mark.parametrize("step", [3, 13, 16])
def test_an_epoch_goes_on_in_its_order_under_a_smaller_micro_batch(step: int, shuffle: str, tmp_path: Path) -> None:
    plans, arguments = ("fp32-ddp-none-mb8x1", "fp32-ddp-none-mb1x8"), ["--shuffle", shuffle, "--workers", "1"]
    check_each_row_once_in_every_epoch(interrupted(step, plans, tmp_path, arguments))


@pytest.mark.parametrize("shuffle", ["plain", "seedable"])
def test_an_epoch_goes_on_in_its_order_on_two_ranks(shuffle: str, tmp_path: Path) -> None:
    plans = "fp32-ddp-none-mb4x1", "fp32-ddp-none-mb1x4"
    steps = interrupted(13, plans, tmp_path, ["--shuffle", shuffle], world=2)
    # 58 rows are 15 batches of 4, the last one with 2 rows: 6 rows come twice to make 8 batches for each rank.
    check_each_row_once_in_every_epoch(steps, copies=(6, 0, 0))


def test_a_second_resume_goes_on_in_the_same_epoch(tmp_path: Path) -> None:
    plan = "fp32-ddp-none-mb4x2"
    first = train(plan, 1, tmp_path, [], ATTEMPT="1")
    for attempt, step in ((2, 10), (3, 13)):
        saved = tmp_path / "saves" / f"step-{step}"
        variables = {"ATTEMPT": str(attempt), "RESUME_FROM": str(saved), "RESUME_SAMPLES": str(step * 8)}
        rest = train(plan, 1, tmp_path, ["--resume-from", str(saved)], **variables)
        assert rest == {each: rows for each, rows in first.items() if each > step}
