"""Counting steps, tallying batches, timing, and detecting hangs: the rules, without torch."""

from __future__ import annotations

import pytest

from memtune.plans.plan import Plan
from memtune.wire.report import Device, Phase
from memtune.wire.run import RunKind
from memtune_runner.rank import phases
from memtune_runner.rank.batch_size import BatchSizes, batch_size
from memtune_runner.rank.probe import Probe, ProbeFinished, accumulation, effective_plan
from memtune_runner.rank.settings import Settings
from memtune_runner.watch.batch_counts import BatchCounts
from memtune_runner.watch.hang import HangLimits, HangRule
from memtune_runner.watch.oom_report_files import top_sites
from memtune_runner.watch.step_duration import StepDuration
from memtune_runner.watch.steps import StepCounter


class Shape:
    """A tensor's shape."""

    def __init__(self, *shape: int, floating: bool = False) -> None:
        self.shape, self._floating = shape, floating

    def is_floating_point(self) -> bool:
        return self._floating


def test_several_optimizers_between_two_backward_passes_make_one_step() -> None:
    counter = StepCounter()
    for _ in range(3):
        counter.backward_began()
        counter.backward_began()
        assert counter.optimizer_stepped()
        assert not counter.optimizer_stepped()
    assert (counter.steps, counter.skipped) == (3, 0)


def test_a_step_before_any_backward_pass_is_an_engine_making_its_states() -> None:
    counter = StepCounter()
    assert not counter.optimizer_stepped()
    assert counter.steps == 0


def test_skipped_steps_are_counted_apart() -> None:
    counter = StepCounter()
    counter.backward_began()
    assert counter.optimizer_stepped(skipped=True)
    counter.backward_began()
    counter.optimizer_stepped()
    assert (counter.steps, counter.skipped) == (1, 1)


@pytest.mark.parametrize("order", [(True, False), (False, True)])
def test_a_step_of_which_one_optimizer_was_skipped_is_none_that_was_skipped(order: tuple[bool, bool]) -> None:
    counter = StepCounter()
    counter.backward_began()
    for skipped in order:
        counter.optimizer_stepped(skipped)
    assert (counter.steps, counter.skipped) == (1, 0)


def test_an_engine_counts_itself() -> None:
    counter = StepCounter()
    counter.backward_began()
    assert not counter.engine_stepped(0, 0)
    assert counter.engine_stepped(1, 0)
    assert counter.engine_stepped(1, 1)
    assert (counter.steps, counter.skipped) == (1, 1)


def test_samples_of_a_step_are_counted_over_all_ranks() -> None:
    batch_counts = BatchCounts()
    for rows in (4, 4, 4, 1):  # the last batch of an epoch is smaller and ends a smaller step
        batch_counts.forward_began(rows, rows * 32)
        batch_counts.block_checkpointed()
        batch_counts.block_checkpointed()
        batch_counts.forward_ended()
        batch_counts.backward_began()
        if batch_counts.micro_steps_now == 3:
            batch_counts.stepped(world=2)
    batch_counts.stepped(world=2)
    assert (batch_counts.micro_batch, batch_counts.largest_tokens) == (4, 128)
    assert (batch_counts.micro_steps, batch_counts.samples_per_step) == (3, 24)
    assert batch_counts.checkpointed_blocks == 2
    assert batch_counts.trained_samples == 13, "on this rank"
    batch_counts.forward_began(4, 128)
    batch_counts.backward_began()
    assert batch_counts.trained_samples == 13, "those that wait for their step are not trained"


def test_samples_that_nobody_saw_in_a_step_are_not_counted_as_none() -> None:
    batch_counts = BatchCounts()
    assert batch_counts.trained_samples == 0
    batch_counts.backward_began()
    batch_counts.stepped(world=1)
    assert {batch_counts.trained_samples, batch_counts.samples_per_step} == {None}


def test_a_pass_in_evaluation_mode_is_forgotten_once_the_script_does_something_else() -> None:
    batch_counts = BatchCounts()
    batch_counts.undecided_forward_began(1, 1)  # a summary of the model
    batch_counts.forward_began(0, 0)  # a batch that nothing tells the size of
    batch_counts.backward_began()
    batch_counts.stepped(world=1)
    assert (batch_counts.micro_batch, batch_counts.samples_per_step, batch_counts.trains_in_evaluation_mode) == (
        None,
        None,
        False,
    )
    batch_counts.undecided_forward_began(1, 1)
    batch_counts.forward_without_gradients_began()
    assert not batch_counts.is_undecided


def test_an_attack_on_a_model_in_evaluation_mode_trains_nothing() -> None:
    batch_counts = BatchCounts()
    for _ in range(3):
        batch_counts.undecided_forward_began(100, 100)
        batch_counts.backward_began()
    batch_counts.forward_began(32, 32)
    batch_counts.backward_began()
    batch_counts.stepped(world=1)
    assert (batch_counts.trained_samples, batch_counts.samples_per_step, batch_counts.micro_batch) == (32, 32, 32)
    assert (batch_counts.micro_steps, batch_counts.trains_in_evaluation_mode) == (1, False)


def test_optimizers_that_take_turns_are_judged_by_the_one_that_needs_fewer_passes() -> None:
    batch_counts = BatchCounts()
    for _ in range(2):  # a discriminator sees real and false samples of each, the generator makes the false ones
        for optimizer, passes in (("discriminator", 2), ("generator", 1)):
            for _ in range(passes):
                batch_counts.forward_began(8, 8)
                batch_counts.backward_began()
            batch_counts.stepped(1, optimizer)
    assert (batch_counts.takes_turns, batch_counts.most_steps) == (True, 2)
    assert (batch_counts.micro_steps, batch_counts.samples_per_step) == (1, 8)
    assert batch_counts.trained_samples is None, "the same samples may have been trained by both"


def test_a_forward_pass_in_evaluation_mode_trains_if_a_backward_pass_is_the_next_to_follow() -> None:
    batch_counts = BatchCounts()
    batch_counts.undecided_forward_began(16, 16)  # an evaluation that computes gradients for nothing
    batch_counts.evaluation_began(16)
    batch_counts.forward_began(4, 4)
    batch_counts.backward_began()
    assert (batch_counts.trains_in_evaluation_mode, batch_counts.micro_batch, batch_counts.evaluation_batch) == (
        False,
        4,
        16,
    )
    batch_counts.stepped(1)
    for _ in range(2):
        batch_counts.undecided_forward_began(8, 8)
        batch_counts.backward_began()
    batch_counts.backward_began()  # of the same forward pass
    batch_counts.stepped(1)
    assert (batch_counts.trains_in_evaluation_mode, batch_counts.micro_batch) == (True, 8)
    assert batch_counts.trained_samples == 4 + 8 + 8


def test_optimizers_that_ever_step_on_the_same_gradients_do_not_take_turns() -> None:
    batch_counts = BatchCounts()
    for step in range(6):  # a second optimizer steps before the main one in every third step
        batch_counts.forward_began(8, 8)
        batch_counts.backward_began()
        batch_counts.stepped(1, "second" if step % 3 == 2 else "main")
        if step % 3 == 2:
            batch_counts.stepped_on_same_gradients("main")
    assert (batch_counts.takes_turns, batch_counts.trained_samples) == (False, 48)


def test_trainings_one_after_the_other_do_not_take_turns() -> None:
    batch_counts = BatchCounts()
    for optimizer in (0, 0, 1, 1):
        batch_counts.forward_began(8, 8)
        batch_counts.backward_began()
        batch_counts.stepped(1, optimizer)
    assert (batch_counts.takes_turns, batch_counts.trained_samples) == (False, 32)


def test_a_model_that_sees_its_samples_twice_before_the_backward_pass_sees_them_once() -> None:
    batch_counts = BatchCounts()
    for _ in range(2):
        batch_counts.forward_began(4, 128)
        batch_counts.forward_ended()
    batch_counts.backward_began()
    batch_counts.stepped(world=1)
    assert (batch_counts.micro_steps, batch_counts.samples_per_step) == (1, 4)


def stepped(pace: StepDuration, now: float, optimizer_seconds: float = 0.0, disturbed: bool = False) -> None:
    pace.optimizer_took(optimizer_seconds)
    pace.stepped(now, micro_steps=2, tokens=100, disturbed=disturbed)


def test_shortened_steps_are_extrapolated() -> None:
    pace = StepDuration()
    pace.training_began(10.0)
    stepped(pace, 60.0)  # warm-up
    assert pace.step_seconds(8) is None
    stepped(pace, 65.0, optimizer_seconds=1.0)
    # Two micro-batches took 4 s, so eight of them take 16 s, and the optimizer its second.
    assert pace.step_seconds(8) == 17.0
    assert pace.step_seconds(2) == 5.0
    assert pace.tokens_per_step(8) == 400


def test_a_step_with_a_save_is_left_out_of_step_times() -> None:
    pace = StepDuration()
    pace.training_began(0.0)
    for now, disturbed in ((1.0, False), (2.0, False), (60.0, True), (61.0, False), (90.0, True)):
        stepped(pace, now, disturbed=disturbed)
    assert pace.step_seconds(2) == 1.0


def test_step_times_include_an_evaluation_that_every_step_has() -> None:
    pace = StepDuration()
    pace.training_began(0.0)
    for now in (1.0, 3.0, 5.0):
        stepped(pace, now, disturbed=True)
    assert pace.step_seconds(2) == 2.0


def test_the_usual_duration_is_known_from_the_first_step_on() -> None:
    pace = StepDuration()
    assert pace.usual_seconds() is None
    pace.training_began(0.0)
    stepped(pace, 30.0)
    assert pace.usual_seconds() == 30.0
    stepped(pace, 32.0)
    assert pace.usual_seconds() == 2.0


@pytest.mark.parametrize(("usual_seconds", "limit_seconds"), [(None, 1_800.0), (0.5, 60.0), (6.0, 60.0), (30.0, 300.0)])
def test_ten_steps_and_at_least_a_minute_of_silence_are_a_hang(
    usual_seconds: float | None, limit_seconds: float
) -> None:
    rule = HangRule(HangLimits())
    rule.note_progress(100.0)
    assert rule.silence(100.0 + limit_seconds, Phase.BACKWARD, usual_seconds) is None
    assert rule.silence(101.0 + limit_seconds, Phase.BACKWARD, usual_seconds) == limit_seconds + 1


def test_nothing_hangs_before_the_first_batch() -> None:
    assert HangRule(HangLimits()).silence(1e9, Phase.INIT, None) is None


@pytest.mark.parametrize("phase", [Phase.EVALUATION, Phase.SAVE])
def test_evaluating_and_saving_are_no_hang_and_silence_counts_from_their_end(phase: Phase) -> None:
    rule = HangRule(HangLimits())
    rule.note_progress(0.0)
    assert rule.silence(10_000.0, phase, 1.0) is None
    assert rule.silence(10_060.0, Phase.FORWARD, 1.0) is None
    assert rule.silence(10_061.0, Phase.FORWARD, 1.0) == 61.0


def test_a_rank_that_waits_for_one_that_evaluates_or_saves_does_not_hang() -> None:
    rule = HangRule(HangLimits())
    rule.note_progress(0.0)
    assert rule.silence(10_000.0, Phase.BACKWARD, 1.0, is_grace_asked=True) is None
    assert rule.silence(10_060.0, Phase.BACKWARD, 1.0) is None
    assert rule.silence(10_061.0, Phase.BACKWARD, 1.0) == 61.0


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"),
    [
        ((), {"attention_mask": Shape(2, 9), "input_ids": Shape(4, 9)}, (4, 36)),
        ((Shape(4, 8, 16, floating=True),), {}, (4, 32)),
        ((Shape(4, 3, 32, 32, floating=True),), {}, (4, 4)),  # images: a row is a row
        ((Shape(4, 16, floating=True),), {}, (4, 4)),
        ((Shape(), {"deep": [Shape(5, 2)]}), {}, (5, 10)),
        (({"input_ids": Shape(3, 7), "a": Shape(1)},), {}, (3, 21)),
        ((1, "no tensor"), {"labels": None}, None),
        ((Shape(40, 16, floating=True), Shape(2, 90), Shape(40)), {}, None),  # the nodes and edges of some graphs
        ((Shape(40, 16, floating=True),), {"edge_index": Shape(2, 90)}, None),
        ((Shape(2, 16, floating=True), Shape(2, 9)), {}, (2, 2)),
    ],
)
def test_the_size_of_a_batch(
    args: tuple[object, ...], kwargs: dict[str, object], expected: tuple[int, int] | None
) -> None:
    assert batch_size(args, kwargs) == expected


@pytest.mark.parametrize(
    ("batches", "expected"),
    [
        ([(16, 8), (11, 8), (16, 10)], [(8, 128), (8, 88), (10, 160)]),  # a model that takes the sequences as columns
        ([(16, 8, 32)], [(8, 128)]),
        ([(8, 16), (3, 16), (8, 8)], [(8, 128), (3, 48), (8, 64)]),
        ([(16, 4), (4, 8)], [(16, 64), (4, 32)]),  # a script with another batch than the plan's
    ],
)
def test_samples_may_be_the_columns_of_a_batch(batches: list[tuple[int, ...]], expected: list[tuple[int, int]]) -> None:
    sizes = BatchSizes(micro_batch=8, sequence_length=16)
    inputs = [(Shape(*each, floating=len(each) == 3), Shape(2, 8, 8)) for each in batches]
    assert [sizes.of(each, {}, trains=True) for each in inputs] == expected


@pytest.mark.parametrize(
    ("micro_batch", "sequence_length", "batches", "rows"),
    [
        (1, 64, [(1, 64), (64, 1), (1, 64)], [1, 64, 1]),
        (8, 1, [(8, 8), (1, 8), (4, 8)], [8, 1, 4]),  # a table with as many features as rows, and a last short batch
        (8, 8, [(8, 8), (4, 8)], [8, 4]),  # a square: nothing tells, so that rows count
    ],
)
def test_the_first_batch_that_trains_says_where_the_samples_are(
    micro_batch: int, sequence_length: int, batches: list[tuple[int, ...]], rows: list[int]
) -> None:
    sizes = BatchSizes(micro_batch, sequence_length)
    sizes_of = [sizes.of((Shape(*each),), {}, trains=True) for each in batches]
    assert [size.rows for size in sizes_of if size is not None] == rows


def test_a_batch_before_the_first_that_trains_decides_for_itself_alone() -> None:
    sizes = BatchSizes(micro_batch=1, sequence_length=64)
    assert sizes.of((Shape(64, 1),), {}, trains=False) == (1, 64)
    assert sizes.of((Shape(1, 64),), {}, trains=False) == (1, 64)
    assert sizes.of((), {}, trains=True) is None
    assert sizes.of((Shape(1, 64),), {}, trains=True) == (1, 64)
    assert sizes.of((Shape(64, 1),), {}, trains=False) == (64, 64)


def test_a_phase_lasts_for_its_block_and_an_exception_leaves_it_standing() -> None:
    phases.reset()
    phases.enter(Phase.FORWARD)
    with phases.during(Phase.SAVE):
        assert phases.current() is Phase.SAVE
    assert (phases.current(), phases.times_ended(Phase.SAVE)) == (Phase.FORWARD, 1)
    with pytest.raises(MemoryError), phases.during(Phase.SAVE):
        raise MemoryError
    assert (phases.current(), phases.times_ended(Phase.SAVE)) == (Phase.SAVE, 1)


def settings_of(plan: str, kind: RunKind = RunKind.PROBE) -> Settings:
    parsed = Plan.parse(plan)
    return Settings(parsed, kind, "env", parsed.global_batch(1), 32, device=Device.CUDA)


def test_a_probe_has_shorter_steps_and_an_attempt_has_not() -> None:
    assert accumulation(settings_of("bf16-z2-none-mb1x16")) == 2
    assert effective_plan(settings_of("bf16-z2-none-mb1x16")) == Plan.parse("bf16-z2-none-mb1x2")
    assert accumulation(settings_of("bf16-z2-none-mb1x16", RunKind.TRAIN)) == 16
    assert Probe.of(settings_of("bf16-z2-none-mb1x16", RunKind.TRAIN), world=1) is None


def test_a_probe_ends_at_the_batch_after_its_last_step() -> None:
    probe = Probe(2)
    probe.stepped(1, 0)
    probe.forward_begins(is_evaluation=False)
    probe.stepped(2, 0)
    probe.forward_begins(is_evaluation=True)
    with pytest.raises(ProbeFinished):
        probe.forward_begins(is_evaluation=True)
    with pytest.raises(ProbeFinished):
        probe.forward_begins(is_evaluation=False)


def test_a_probe_whose_steps_are_all_skipped_ends_too() -> None:
    probe = Probe(2)
    probe.stepped(0, 63)
    probe.forward_begins(is_evaluation=False)
    probe.stepped(0, 64)
    with pytest.raises(ProbeFinished):
        probe.forward_begins(is_evaluation=False)


def test_an_integration_may_end_a_probe_itself() -> None:
    probe = Probe(1)
    probe.defer()
    probe.stepped(5, 0)
    probe.forward_begins(is_evaluation=False)
    with pytest.raises(ProbeFinished):
        probe.finish()


def test_the_end_of_a_probe_runs_once_and_may_evaluate() -> None:
    probe, done = Probe(1), []

    def act() -> None:
        done.append(probe.evaluated)
        probe.forward_begins(is_evaluation=True)

    probe.at_the_end(act)
    probe.stepped(1, 0)
    for _ in range(2):
        with pytest.raises(ProbeFinished):
            probe.forward_begins(is_evaluation=False)
    assert done == [False]


def test_except_exception_does_not_catch_the_end_of_a_probe() -> None:
    assert not issubclass(ProbeFinished, Exception)


def frame(filename: str, line: int) -> dict[str, object]:
    return {"filename": filename, "line": line, "name": "forward"}


def test_memory_is_attributed_to_lines_of_the_users_code() -> None:
    inner = frame("/x/torch/nn/functional.py", 1)
    blocks = [
        {"state": "active_allocated", "size": 30, "frames": [inner, frame("train.py", 7)]},
        {"state": "active_awaiting_free", "size": 20, "frames": [inner, frame("train.py", 7)]},
        {"state": "active_allocated", "size": 40, "frames": [inner]},
        {"state": "active_allocated", "size": 5},
        {"state": "inactive", "size": 900, "frames": [frame("train.py", 9)]},
    ]
    follower = frame("/x/memtune_runner/emulated/dispatch_mode.py", 57)
    blocks.append({"state": "active_allocated", "size": 3, "frames": [follower, frame("train.py", 8)]})
    assert top_sites({"segments": [{"blocks": blocks}]}) == [
        ("train.py:7 forward", 50),
        ("/x/torch/nn/functional.py:1 forward", 40),
        ("backward pass: autograd's thread runs no line of Python", 5),
        ("train.py:8 forward", 3),
    ]
    assert top_sites({}) == []


def test_a_script_that_has_left_its_loop_has_longer() -> None:
    rule = HangRule(HangLimits())
    rule.note_progress(100.0)
    assert rule.silence(1_900.0, Phase.OPTIMIZER_STEP, 1.0, loop_is_left=lambda: True) is None
    assert rule.silence(1_901.0, Phase.OPTIMIZER_STEP, 1.0, loop_is_left=lambda: True) == 1_801.0
    assert rule.silence(161.0, Phase.OPTIMIZER_STEP, 1.0, loop_is_left=lambda: False) == 61.0
