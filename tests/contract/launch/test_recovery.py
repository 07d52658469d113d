"""A launch that exceeds the memory of a virtual GPU, and its continuation on the next rung."""

from __future__ import annotations

from pathlib import Path

import pytest
from oom_recovery import Trainer, given_less_after_a_step, losses
from warm_environment import training_python

from memtune.wire.report import Device
from memtune_runner.install import install


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("pod") / "runner"
    install(directory)
    return directory


def test_a_plan_that_exceeds_its_gpu_is_reported_and_the_next_rung_resumes_with_the_same_loss(
    runner: Path, tmp_path: Path
) -> None:
    train = Trainer(runner, Device.VIRTUAL, training_python())
    whole = train(tmp_path / "whole", train.large, 1)
    assert sorted(losses(whole)) == [1, 2], whole.stdout + whole.stderr

    shrinks = {"SHRINK": f"1:{train.little_bytes}"}
    failed = train(tmp_path / "shrinking", train.large, 1, variables=shrinks)
    train.told_of(failed)
    assert "virtual" in failed.report.message

    rung = train.next_rung(failed.report)
    train.goes_on(train(tmp_path / "shrinking", rung.plan, 2, variables=shrinks), whole)


def test_the_gpu_tests_pass_on_a_virtual_gpu(runner: Path, tmp_path: Path) -> None:
    given_less_after_a_step(Trainer(runner, Device.VIRTUAL, training_python()), tmp_path)
