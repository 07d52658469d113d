"""Which loss of a script's own is weighed by what its whole step has: its tokens or its micro-batches."""

from __future__ import annotations

import functools
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


def divides_by_the_micro_batches(trainer: Any, model: Any, inputs: Any, **_kwargs: Any) -> Any:
    return model(inputs).loss / trainer.args.gradient_accumulation_steps


def divides_by_the_micro_batches_of_this_step(trainer: Any, model: Any, inputs: Any, **_kwargs: Any) -> Any:
    return model(inputs).loss / trainer.current_gradient_accumulation_steps


def looks_the_micro_batches_up(trainer: Any, model: Any, inputs: Any, **_kwargs: Any) -> Any:
    return model(inputs).loss / getattr(trainer.args, "gradient_accumulation_steps", 1)


def sums_over_a_mask(_trainer: Any, model: Any, inputs: Any) -> Any:
    return (model(inputs).losses * inputs.mask).sum() / inputs.mask.sum()


def sums(trainer: Any, model: Any, inputs: Any) -> Any:
    return trainer.cross_entropy(model(inputs), reduction="sum")


@pytest.mark.parametrize(("function", "expected"), [(ignores, False), (sums_over_a_mask, False), (sums, True)])
def test_a_loss_that_is_reduced_by_a_sum_may_be_one(function: Callable[..., Any], expected: bool) -> None:
    assert own_losses.reduces_by_sum(function) is expected


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (ignores, False),
        (ignores_the_rest, False),
        (knows_nothing_of_it, False),
        (divides, True),
        (passes_on, True),
        (looks_up, True),
        (divides_by_the_micro_batches, True),
        (divides_by_the_micro_batches_of_this_step, True),
        (looks_the_micro_batches_up, True),
        (min, True),
    ],
)
def test_a_loss_is_weighed_if_it_reads_the_tokens_or_micro_batches_of_its_step(
    function: Callable[..., Any], expected: bool
) -> None:
    assert own_losses.weighs(function) is expected


class Model:
    """The ways in which models of transformers come to their losses; each is a forward pass."""

    def mean(self, tokens: Any, labels: Any = None, **kwargs: Any) -> Any:
        return self.cross_entropy(self.decoder(tokens, **kwargs), self.shifted(labels))

    def weighed(self, tokens: Any, labels: Any = None, **kwargs: Any) -> Any:
        return self.cross_entropy(self.decoder(tokens), labels=labels, **kwargs)

    def shifted_before(self, tokens: Any, labels: Any = None, **kwargs: Any) -> Any:
        shift_labels = self.shifted(labels)
        return self.cross_entropy(self.decoder(tokens), labels=None, shift_labels=shift_labels, **kwargs)

    def moved(self, tokens: Any, labels: Any = None, **kwargs: Any) -> Any:
        of_decoder = {}
        if "num_items_in_batch" in kwargs:
            of_decoder["num_items_in_batch"] = kwargs.pop("num_items_in_batch")
        return self.cross_entropy(self.decoder(tokens, **of_decoder), self.shifted(labels))

    def looked_up(self, tokens: Any, labels: Any = None, **kwargs: Any) -> Any:
        return self.cross_entropy(self.decoder(tokens), labels) / kwargs["num_items_in_batch"]

    def without_labels(self, tokens: Any, **kwargs: Any) -> Any:
        return self.decoder(tokens, **kwargs)

    def __getattr__(self, name: str) -> Any:
        raise NotImplementedError

    @functools.wraps(mean)
    def wrapped(self, *args: Any, **kwargs: Any) -> Any:
        return self.mean(*args, **kwargs)


@pytest.mark.parametrize(
    ("forward", "expected"),
    [
        (Model().mean, False),
        (Model().wrapped, False),
        (Model().moved, False),
        (Model().weighed, True),
        (Model().shifted_before, True),
        (Model().looked_up, True),
        (Model().without_labels, True),
        (eval("lambda tokens, labels=None: labels"), True),  # has no source
    ],
)
def test_a_models_loss_is_weighed_if_it_gets_the_item_count(forward: Callable[..., Any], expected: bool) -> None:
    assert own_losses.model_weighs(forward) is expected


class Inherits(Model):
    """Passes on what its class does."""

    def mean(self, *args: Any, **kwargs: Any) -> Any:
        return super().mean(*args, **kwargs)


def test_a_loss_that_calls_the_inherited_one_is_weighed_only_if_that_is() -> None:
    assert own_losses.weighs(Inherits.mean)
    assert own_losses.calls_inherited(Inherits.mean)
    assert not own_losses.calls_inherited(divides)
