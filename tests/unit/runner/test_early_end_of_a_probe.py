"""A probe that ends early: which steps it keeps, and how its ranks agree."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier, local
from types import SimpleNamespace
from typing import Any

import pytest

from memtune.plans.plan import Plan
from memtune.wire.probe_pruning import Pruned, Target
from memtune.wire.report import Device, MeasuredStep
from memtune.wire.run import RunKind
from memtune_runner.rank import probe, probe_agreement, shared_store
from memtune_runner.rank.probe import Enough, Probe, ProbeFinished
from memtune_runner.rank.settings import Settings
from memtune_runner.watch.step_duration import StepDuration

TARGET = Target(tokens_per_second=1000, device_bytes=100)


def play(of: Probe, *steps: tuple[float, float, int]) -> None:
    """Play steps, each with its seconds, its tokens per second and the peak so far."""
    for number, step in enumerate(steps, 1):
        of.stepped(number, 0)
        of.measured(*step)


def test_a_probe_ends_after_the_step_that_rules_its_plan_out() -> None:
    near, slow = Probe(10, TARGET), Probe(10, TARGET)
    play(near, (90.0, 1.0, 80), (2.0, 950.0, 90))
    assert not near.has_enough
    play(slow, (90.0, 1.0, 80), (2.0, 500.0, 90))
    assert (slow.has_enough, slow.pruned) == (True, Pruned.SPEED)
    with pytest.raises(ProbeFinished, match="after 2 steps"):
        slow.forward_begins(is_evaluation=False)


def test_the_first_step_of_a_probe_decides_nothing() -> None:
    large = Probe(10, TARGET)
    play(large, (1.0, 2000.0, 101))
    assert not large.has_enough
    play(large, (1.0, 2000.0, 101), (1.0, 2000.0, 101))
    assert large.pruned is Pruned.MEMORY


def test_a_pruned_probe_stays_ended() -> None:
    pruned, whole = Probe(10, TARGET), Probe(2, TARGET)
    play(pruned, (1.0, 500.0, 1), (1.0, 500.0, 1), (1.0, 2000.0, 1))
    assert (pruned.has_enough, pruned.pruned) == (True, Pruned.SPEED)
    play(whole, (1.0, 500.0, 1), (1.0, 500.0, 1))
    assert (whole.has_enough, whole.pruned) == (True, None), "there was nothing left to save"


def test_without_a_target_nothing_is_too_slow_or_too_large() -> None:
    first = Probe(10)
    play(first, (1.0, 1.0, 2**60), (1.0, 1.0, 2**60), (2.0, 0.5, 2**60))
    assert not first.has_enough
    assert first.measured_steps == (MeasuredStep(2, 1.0, 2**60), MeasuredStep(3, 2.0, 2**60))


def test_a_probe_ends_once_its_steps_are_steady() -> None:
    probe = Probe(10)
    play(probe, (9.0, 1.0, 80), (4.0, 2.0, 90), (1.0, 8.0, 90))
    assert not probe.has_enough, "the second step compiled something, too"
    play(probe, (9.0, 1.0, 80), (4.0, 2.0, 90), (1.0, 8.0, 90), (1.01, 7.9, 90))
    assert (probe.has_enough, probe.ended_early, probe.pruned) == (True, Enough.STEADY, None), "its plan may win"
    with pytest.raises(ProbeFinished, match="after 4 steps"):
        probe.forward_begins(is_evaluation=False)


def test_skipped_steps_are_steady_without_an_optimizer_and_do_not_count() -> None:
    probe = Probe(10)
    for skipped in range(1, 6):
        probe.stepped(0, skipped)
        probe.measured(1.0, 1.0, 1)
    assert not probe.has_enough
    for steps in range(1, 4):
        probe.stepped(steps, 5)
        probe.measured(1.0, 1.0, 2)
        assert probe.has_enough is (steps == 3)


def test_an_unsteady_probe_ends_before_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("memtune_runner.rank.probe.time.monotonic", lambda: now)
    slow = Probe(10, seconds=300.0)
    now = 249.0
    play(slow, (9.0, 1.0, 1), (9.0, 1.0, 1), (5.0, 2.0, 1))
    assert not slow.has_enough
    now = 251.0
    play(slow, (9.0, 1.0, 1), (9.0, 1.0, 1))
    assert not slow.has_enough, "one step after the first shows nothing"
    play(slow, (9.0, 1.0, 1), (9.0, 1.0, 1), (5.0, 2.0, 1))
    assert (slow.ended_early, slow.pruned) == (Enough.LATE, None)


def test_a_training_without_another_step_ends_its_probe() -> None:
    short = Probe(10)
    play(short, (9.0, 1.0, 1))
    short.training_ends()
    assert (short.has_enough, short.ended_early) == (True, None)


def test_where_nothing_is_computed_a_probe_ends_after_three_steps_for_all_ranks() -> None:
    settings = Settings(
        Plan.parse("bf16-z2-none-mb1x2"),
        RunKind.PROBE,
        "env",
        global_batch=16,
        sequence_length=32,
        gpus_per_node=8,
        device=Device.EMULATED,
        gpu_name="h100-80gb",
        gpu_memory_bytes=2**30,
    )
    emulated = Probe.of(settings, world=8)
    assert emulated is not None
    play(emulated, (0.0, 0.0, 1), (0.0, 0.0, 2), (0.0, 0.0, 2))
    assert emulated.ended_early is Enough.STEADY


def test_a_report_keeps_some_steps_with_the_first_and_the_last() -> None:
    long = Probe(100)
    play(long, *((1.0, 1.0, number) for number in range(100)))
    assert [step.number for step in long.measured_steps] == [2, 26, 51, 76, 100]
    few = Probe(6)
    play(few, *((0.0 if number == 4 else 1.0, 1.0, 1) for number in range(1, 7)))
    assert [step.number for step in few.measured_steps] == [2, 3, 5, 6], "a disturbed step tells no time"


def test_only_a_probe_that_has_enough_is_over() -> None:
    try:
        assert not probe.has_enough()
        current = Probe(1)
        probe.begin(current)
        assert not probe.has_enough()
        current.stepped(1, 0)
        assert probe.has_enough()
    finally:
        probe.begin(None)
    assert not probe.has_enough()


def test_the_last_step_of_a_pruned_probe_is_reported_whole() -> None:
    pace = StepDuration()
    pace.training_began(0.0)
    assert pace.last_step(8) is None
    pace.stepped(9.0, micro_steps=2, tokens=100, disturbed=False)
    assert pace.last_step(8) is None, "it warmed up"
    pace.optimizer_took(1.0)
    pace.stepped(14.0, micro_steps=2, tokens=100, disturbed=False)
    assert pace.last_step(8) == (17.0, 400.0)
    pace.stepped(15.0, micro_steps=2, tokens=100, disturbed=True)
    assert pace.last_step(8) is None


class Ranks:
    """Ranks that are threads with a common store."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, world: int) -> None:
        distributed = pytest.importorskip("torch").distributed
        self.store, self._world, self._own = distributed.HashStore(), world, local()
        monkeypatch.setattr(shared_store, "of_all_ranks", lambda: self.store)
        monkeypatch.setattr(distributed, "get_rank", lambda: self._own.rank)
        monkeypatch.setattr(distributed, "get_world_size", lambda: world)
        monkeypatch.setattr(probe_agreement, "_GATHERING", timedelta(seconds=0.3))
        monkeypatch.setattr(probe_agreement, "_FOLLOWING", timedelta(seconds=0.6))

    def agree(self, wishes: dict[int, tuple[int, Pruned | None]]) -> list[str | None]:
        """Let each rank agree at its step, with its own decision."""
        barrier = Barrier(len(wishes))

        def ask(rank: int) -> str | None:
            self._own.rank = rank
            barrier.wait()
            step, mine = wishes[rank]
            return probe_agreement.on(step, mine, self._world)

        with ThreadPoolExecutor(len(wishes)) as pool:
            return list(pool.map(ask, wishes))


def test_the_first_rank_decides_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(monkeypatch, 3)
    assert ranks.agree({rank: (2, None if rank == 0 else Pruned.SPEED) for rank in range(3)}) == [None] * 3
    assert ranks.agree({rank: (3, Pruned.MEMORY if rank == 0 else None) for rank in range(3)}) == [Pruned.MEMORY] * 3


def test_no_rank_ends_where_one_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(monkeypatch, 3)
    assert ranks.agree({0: (2, Pruned.SPEED), 1: (2, None)}) == [None, None]
    assert ranks.agree({0: (3, Pruned.SPEED), 1: (3, None), 2: (4, None)}) == [None, None, None]


def test_a_decision_stays_though_a_rank_comes_late(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(monkeypatch, 2)
    assert ranks.agree({1: (2, None)}) == [None]
    assert ranks.agree({0: (2, Pruned.SPEED)}) == [None]


def test_ranks_without_a_store_never_end_early_and_a_single_one_needs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_store, "of_all_ranks", lambda: None)
    assert probe_agreement.on(2, Pruned.SPEED, 1) is Pruned.SPEED
    assert probe_agreement.on(2, Pruned.SPEED, 2) is None


def test_ranks_without_a_store_make_three_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_store, "of_all_ranks", lambda: None)
    apart = Probe(10, world=2)
    play(apart, (9.0, 1.0, 1), (9.0, 1.0, 1))
    assert not apart.has_enough
    play(apart, (9.0, 1.0, 1), (9.0, 1.0, 1), (5.0, 2.0, 1))
    assert (apart.has_enough, apart.ended_early) == (True, None)


def test_a_store_that_has_gone_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: Any) -> None:
        raise RuntimeError("Connection reset by peer")

    ranks = Ranks(monkeypatch, 2)
    ranks.store = SimpleNamespace(set=gone, wait=gone, compare_set=gone)
    assert ranks.agree({0: (2, Pruned.SPEED), 1: (2, None)}) == [None, None]
