"""Replaying a trace, checked with peaks added up by hand."""

from __future__ import annotations

import pytest
from small_traces import BLOCKS, HIDDEN, INNER, KIB, TOKENS, WEIGHT, small_trace

from memtune.memory.replay import Replayer, live_peak
from memtune.memory.replay.optimizers import Piece, step
from memtune.memory.replay.tape import Tape
from memtune.plans.plan import Plan
from memtune.wire.trace import TraceError

BUCKETS = (BLOCKS + 2) * WEIGHT  # the reducer's
WEIGHTS = (BLOCKS + 2) * WEIGHT + 512 + BUCKETS  # and a buffer
STATES = (BLOCKS + 2) * (2 * WEIGHT + 4)  # two moments and a step count each
GRADIENTS = (BLOCKS + 2) * WEIGHT


def peak(short: str, nodes: int = 1, gpus: int = 1) -> int:
    return live_peak(Replayer(small_trace(), nodes, gpus).tape(Plan.parse(short)))


def test_without_checkpointing_every_save_is_there_when_the_backward_begins() -> None:
    # The deepest moment: all saves, the loss, the gradient of the last hidden state, the head's gradient, and the
    # last block's wide gradient. The last hidden state has been released by then.
    saved = TOKENS + BLOCKS * (HIDDEN + INNER)
    rows = 16
    expected = WEIGHTS + STATES + rows * (saved + HIDDEN + INNER) + 512 + WEIGHT
    assert peak(f"fp32-ddp-none-mb{rows}x1") == expected


def test_a_larger_micro_batch_changes_only_memory_of_rows() -> None:
    grown = peak("fp32-ddp-none-mb32x1") - peak("fp32-ddp-none-mb16x1")
    assert grown == 16 * (TOKENS + BLOCKS * (HIDDEN + INNER) + HIDDEN + INNER)


def test_full_checkpointing_keeps_inputs_and_one_recomputed_block() -> None:
    rows = 16
    kept = TOKENS + BLOCKS * HIDDEN
    # At the last block: its input, recomputed the inner; the gradient that comes in and the one that goes out.
    recomputed = INNER + HIDDEN + INNER
    expected = WEIGHTS + STATES + rows * (kept + recomputed) + 512 + WEIGHT
    assert peak(f"fp32-ddp-full-mb{rows}x1") == expected


def test_every_second_block_keeps_half_of_the_inputs_and_recomputes_two() -> None:
    rows = 16
    kept = TOKENS + BLOCKS // 2 * HIDDEN
    recomputed = 2 * INNER + HIDDEN + HIDDEN + INNER
    expected = WEIGHTS + STATES + rows * (kept + recomputed) + 512 + WEIGHT
    assert peak(f"fp32-ddp-every2-mb{rows}x1") == expected


def test_selective_keeps_every_second_product() -> None:
    # The first product of each block is the inner, which autograd saves: nothing is gained here but the recomputation.
    assert peak("fp32-ddp-sel-mb16x1") == peak("fp32-ddp-none-mb16x1")


def test_accumulated_gradients_live_through_the_next_forward() -> None:
    once, twice = peak("fp32-ddp-none-mb16x1"), peak("fp32-ddp-none-mb16x2")
    # The head's gradient is there in both.
    assert twice - once == GRADIENTS - WEIGHT


def test_foreach_makes_the_square_roots_of_all_moments_at_once() -> None:
    tape = Replayer(small_trace()).replay(Plan.parse("fp32-ddp-none-mb1x1-foreach"))
    fused = Replayer(small_trace()).replay(Plan.parse("fp32-ddp-none-mb1x1"))
    # Fused steps count on the device; their peak is what clipping takes: a norm of each, all in one, and theirs.
    scalars = (BLOCKS + 2) * 4 + 2 * (BLOCKS + 2) * 4 + 4
    assert tape.phases["step"].requested - fused.phases["step"].requested == GRADIENTS - scalars


def test_foreach_muon_makes_square_roots_only_for_its_adamw_weights() -> None:
    block, embedding, norm = Piece(600, 20, is_in_block=True), Piece(500, 50, is_in_block=False), Piece(7, 7, True)
    muon = [2400, 1200, 1200, 1200]
    for plan, made in (("fp32-ddp-none-mb1x1-muon", muon), ("fp32-ddp-none-mb1x1-muon-foreach", [*muon, 2000, 28])):
        tape = Tape()
        step(tape, Plan.parse(plan), [embedding, block, norm])
        assert tape.sizes == made


@pytest.mark.parametrize("gpus", [2, 4, 8])
def test_more_ranks_shard_more(gpus: int) -> None:
    few, many = (peak("fp32-fsdp-none-mb1x1", gpus=count) for count in (gpus, 2 * gpus))
    states = (BLOCKS + 2) * 3 * WEIGHT  # weights and two moments
    assert few - many >= states // gpus - states // (2 * gpus)


def test_fsdp_gathers_its_units_again_unless_it_keeps_them() -> None:
    kept, again = peak("fp32-fsdpsgo-full-mb1x1", gpus=8), peak("fp32-fsdp-full-mb1x1", gpus=8)
    assert WEIGHT < kept - again < BLOCKS * WEIGHT


def test_fsdp_has_none_of_the_roots_weights_where_a_loss_is_computed_around_the_model() -> None:
    rows, loss, gpus = 1, 2 * GRADIENTS, 8
    # The deepest moment is the loss: shards and states, the saves of all blocks, what the loss keeps, and no weight.
    expected = 3 * GRADIENTS // gpus + (BLOCKS + 2) * 4 + 512  # two moments, a step count each, and a buffer
    expected += rows * (TOKENS + BLOCKS * (HIDDEN + INNER) + HIDDEN + loss) + 512
    replayer = Replayer(small_trace(loss), gpus_per_node=gpus)
    assert live_peak(replayer.tape(Plan.parse(f"fp32-fsdp-none-mb{rows}x1"))) == expected
    # Kept gathered, they are all there.
    assert live_peak(replayer.tape(Plan.parse(f"fp32-fsdpsgo-none-mb{rows}x1"))) == expected + GRADIENTS


def test_zero_stages_hold_less_and_less() -> None:
    # Stage 3 is left out: weights as small as these stay whole, and partitioned beside that.
    none, states, gradients = (peak(f"bf16-z{stage}-none-mb1x2-bk2000", gpus=8) for stage in (0, 1, 2))
    assert none > states > gradients


def test_offloaded_states_are_not_there() -> None:
    kept, gone = (peak(f"bf16-z2-none-mb1x1-bk1000{offload}", gpus=2) for offload in ("", "-oopt"))
    owned = GRADIENTS // 4 // 2
    # Room for the gradient of the largest weight comes in their place, in 16 bits.
    assert kept - gone >= 12 * owned - WEIGHT // 2


def test_offloaded_activations_come_back_one_by_one() -> None:
    rows = KIB  # large enough to be worth a copy
    kept, gone = (peak(f"fp32-ddp-none-mb{rows}x1{offload}") for offload in ("", "-oact"))
    assert kept - gone >= rows * (BLOCKS - 2) * (HIDDEN + INNER)


def test_phases_and_limits() -> None:
    replayer = Replayer(small_trace())
    plan = Plan.parse("fp32-ddp-none-mb64x1")
    replayed = replayer.replay(plan)
    assert list(replayed.phases) == ["init", "forward", "backward", "step"]
    assert replayed.fits
    assert replayed.peak.requested == live_peak(replayer.tape(plan))
    assert all(each.active <= each.reserved for each in replayed.phases.values())
    assert not replayer.replay(plan, replayed.peak.reserved // 2).fits


def test_a_shared_replay_equals_a_fresh_one() -> None:
    shared = Replayer(small_trace())
    plans = [Plan.parse(f"fp32-ddp-{mode}-mb{rows}x2") for mode in ("none", "full", "every3") for rows in (1, 3, 8)]
    assert [shared.replay(plan) for plan in plans] == [Replayer(small_trace()).replay(plan) for plan in plans]


def test_the_timeline_ends_as_it_began_and_peaks_where_the_tape_does() -> None:
    replayer = Replayer(small_trace())
    plan = Plan.parse("fp32-ddp-full-mb16x2")
    timeline = replayer.timeline(plan)
    assert sum(timeline.points[timeline.peak]) == live_peak(replayer.tape(plan))
    assert timeline.points[-1] == (WEIGHTS - BUCKETS, STATES, 0, BUCKETS, 0, 0)
    assert [name for _, name in timeline.marks] == ["forward", "backward", "forward", "backward", "step"]


@pytest.mark.parametrize(
    ("short", "words"), [("bf16-ddp-none-mb1x1-eager", "eager"), ("bf16-ddp-none-mb1x1-fl", "loss")]
)
def test_a_plan_that_only_the_model_can_carry_out_is_refused(short: str, words: str) -> None:
    with pytest.raises(TraceError, match=words):
        peak(short)
