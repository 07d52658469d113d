"""What a real GPU counts, runs out of, fragments and tells: the bodies that tests/contract tries on a virtual one."""

from __future__ import annotations

import pickle
from pathlib import Path

from device_checks import counters_of_cuda_follow, expandable_segments_fragment_less, memory_table_after_oom
from launches import Place
from oom_recovery import Trainer, given_less_after_a_step
from separate_process import run_in_separate_process

from memtune.wire.report import Device


def test_the_counters_follow_allocations_and_frees() -> None:
    run_in_separate_process(counters_of_cuda_follow)


def test_a_plan_that_exceeds_its_share_is_told_of_and_the_next_rung_goes_on_with_the_same_loss(
    runner: Path, tmp_path: Path
) -> None:
    given_less_after_a_step(Trainer(runner, Device.CUDA), tmp_path)


def test_expandable_segments_fragment_less(runner: Path, tmp_path: Path) -> None:
    expandable_segments_fragment_less(Place(runner, tmp_path), Device.CUDA)


def test_the_holders_of_memory_are_listed_by_line_with_a_snapshot(runner: Path, tmp_path: Path) -> None:
    failed, table = memory_table_after_oom(Trainer(runner, Device.CUDA), tmp_path)
    assert "trainer.py" in table
    with (failed.directory / "memory-rank-0.pickle").open("rb") as file:
        assert pickle.load(file)["segments"]
