"""LitGPT's count of batches after a resume with another accumulation."""

from __future__ import annotations

from typing import Any

import pytest

from memtune.plans.plan import Plan
from memtune_runner.integrations.lightning.fabric import recount


class Layer:
    """A module in a model, and itself one."""

    def modules(self) -> list[Any]:
        return [self]


class LitGptLayer(Layer):
    __module__ = "litgpt.model"


@pytest.mark.parametrize(
    ("model", "batches", "counted"),
    [
        (LitGptLayer(), 12, 24),
        pytest.param(LitGptLayer(), 11, 11, id="within an optimizer step"),
        pytest.param(Layer(), 12, 12, id="a script that may count otherwise"),
    ],
)
def test_only_litgpts_whole_steps_are_counted_in_the_batches_of_the_new_plan(
    model: Layer, batches: int, counted: int
) -> None:
    state = {"model": model, "step_count": 6, "iter_num": batches}
    recount(state, Plan.parse("bf16-ddp-none-mb4x2"), Plan.parse("bf16-ddp-none-mb2x4"))
    assert state["iter_num"] == counted
