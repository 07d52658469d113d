"""A plan that exceeds a virtual GPU of 2 GiB, as the launcher tells of it, and the next rung down, which goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
from recovery import BATCH, LARGE, LITTLE_BYTES, given_less_after_a_step, goes_on, losses, next_rung, told_of, trainer

from memtune.wire.report import Device
from memtune_runner.install import install


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("pod") / "runner"
    install(directory)
    return directory


def test_a_plan_that_exceeds_two_gib_is_told_of_and_the_next_rung_goes_on_with_the_same_loss(
    runner: Path, tmp_path: Path
) -> None:
    train = trainer(runner, Device.VIRTUAL)
    whole = train(tmp_path / "whole", LARGE, 1)
    assert sorted(losses(whole)) == [1, 2], whole.stdout + whole.stderr

    shrinks = {"SHRINK": f"1:{LITTLE_BYTES}"}
    failed = train(tmp_path / "shrinking", LARGE, 1, **shrinks)
    told_of(failed)
    assert "virtual" in failed.report.message

    rung = next_rung(failed.report)
    assert rung.plan.global_batch(1) == BATCH
    goes_on(train(tmp_path / "shrinking", rung.plan, 2, **shrinks), whole)


def test_what_is_tried_on_cuda_holds_on_a_virtual_gpu_too(runner: Path, tmp_path: Path) -> None:
    given_less_after_a_step(trainer(runner, Device.VIRTUAL), tmp_path)
