"""A traced model's predicted memory besides its steps: an evaluation batch and a save."""

from __future__ import annotations

from dataclasses import replace

import pytest
from small_traces import HIDDEN, INNER, TOKENS, small_program, small_trace

from memtune.gpus.gpu import find
from memtune.memory.prediction import Prediction
from memtune.memory.predictor import Predictor
from memtune.memory.replay.replays import evaluation_bytes, forward_bytes
from memtune.memory.traced_model import TracedModel
from memtune.memory.workload import Evaluation, Workload
from memtune.plans.plan import Plan

MODEL = TracedModel("small", small_trace())
ALONE, SHARDED = Plan.parse("fp32-ddp-none-mb4x4"), Plan.parse("fp32-z3-none-mb2x4")


def predicted(evaluation_batch: int = 0) -> Prediction:
    workload = Workload(MODEL, find("h100-80gb"), 16, 8, evaluation=Evaluation(evaluation_batch))
    return Predictor(workload).predict(ALONE)


def test_a_forward_pass_without_gradients_holds_one_block_at_a_time() -> None:
    assert forward_bytes(small_program(), 3) == 3 * (TOKENS + HIDDEN + 2 * INNER + HIDDEN)


def test_an_evaluation_batch_that_is_large_enough_is_the_peak() -> None:
    plain, small, large = predicted(), predicted(1), predicted(400)
    assert small.allocated == plain.allocated
    assert (plain.peak_phase, large.peak_phase) == ("backward", "evaluation")
    assert large.allocated.expected > 400 * (2 * INNER + 2 * HIDDEN)
    parts = {part.name: part.bytes.expected for part in large.components}
    assert {"weights", "optimizer states", "evaluation"} <= set(parts)


def test_logits_that_are_kept_are_those_behind_the_last_block() -> None:
    program = small_program()
    loss = program.codes.rindex("a", 0, program.codes.index("b"))
    head = program.codes.count("a", 0, loss)
    wide = replace(program, per_row=[HIDDEN if number == head else each for number, each in enumerate(program.per_row)])
    model = TracedModel("wide", replace(MODEL.trace, programs={"full": wide}))
    assert evaluation_bytes(model, ALONE, 7, False) == forward_bytes(wide, 7)
    assert evaluation_bytes(model, ALONE, 7, True) == forward_bytes(wide, 7) + 2 * 7 * HIDDEN


@pytest.mark.parametrize(("plan", "gathers"), [(ALONE, False), (SHARDED, True)])
def test_sharded_weights_are_gathered_for_a_save(plan: Plan, gathers: bool) -> None:
    workload = Workload(MODEL, find("h100-80gb"), 16, 8, gpus_per_node=2)
    assert ("gathered units" in [term.name for term in Predictor(workload).explain(plan)]) is gathers
