"""Which loss of a script's own is weighed by the tokens of its step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from memtune_runner.integrations import own_losses


def ignores(_trainer: Any, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:  # noqa: ARG001  # as it is
    return model(inputs).loss


def ignores_the_rest(_trainer: Any, model: Any, inputs: Any, *_args: Any, **_kwargs: Any) -> Any:
    return model(inputs).loss


def knows_nothing_of_it(_trainer: Any, model: Any, inputs: Any, return_outputs: bool = False) -> Any:
    return model(inputs).loss, return_outputs


def divides(_trainer: Any, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
    return model(inputs).loss / num_items_in_batch


def passes_on(trainer: Any, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
    return trainer.inherited(model, inputs, return_outputs, **kwargs)


def looks_up(_trainer: Any, model: Any, inputs: Any, *_args: Any, **kwargs: Any) -> Any:
    return model(inputs).loss / kwargs["num_items_in_batch"]


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (ignores, False),
        (ignores_the_rest, False),
        (knows_nothing_of_it, False),
        (divides, True),
        (passes_on, True),
        (looks_up, True),
        (min, True),
    ],
)
def test_a_loss_is_weighed_if_it_reads_the_tokens_of_its_step(function: Callable[..., Any], expected: bool) -> None:
    assert own_losses.weighs(function) is expected
