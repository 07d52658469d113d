"""What a real GPU counts, runs out of, fragments and tells: the bodies that tests/contract tries on a virtual one."""

from __future__ import annotations

import pickle
from pathlib import Path

from launches import Place
from on_device import counters_of_cuda_follow, expandable_segments_fragment_less, who_held_the_memory
from own_process import apart
from recovery import Trainer, given_less_after_a_step

from memtune.wire.report import Device


def test_the_counters_follow() -> None:
    apart(counters_of_cuda_follow)


def test_a_plan_that_exceeds_its_share_is_told_of_and_the_next_rung_goes_on_with_the_same_loss(
    runner: Path, tmp_path: Path
) -> None:
    given_less_after_a_step(Trainer(runner, Device.CUDA), tmp_path)


def test_expandable_segments_fragment_less(runner: Path, tmp_path: Path) -> None:
    expandable_segments_fragment_less(Place(runner, tmp_path), Device.CUDA)


def test_who_held_the_memory_is_told_by_line_of_code_with_a_snapshot_beside(runner: Path, tmp_path: Path) -> None:
    failed, table = who_held_the_memory(Trainer(runner, Device.CUDA), tmp_path)
    assert "trainer.py" in table
    with (failed.directory / "memory-rank-0.pickle").open("rb") as file:
        assert pickle.load(file)["segments"]
