"""Counts batches, micro-batches and tokens from what the hooks see. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import NamedTuple


class _Passes:
    """The passes that yielded the gradients of one step, each with the samples seen since the previous pass."""

    def __init__(self) -> None:
        self.count = self.samples = self.tokens = 0
        self.most_rows = self.most_tokens = 0
        self.follow_forward = self.is_ahead = False
        self._rows_ahead = self._tokens_ahead = 0

    def forward_began(self, rows: int, tokens: int) -> None:
        # Several forward passes may see the same samples before one backward pass.
        self._rows_ahead, self._tokens_ahead = max(self._rows_ahead, rows), max(self._tokens_ahead, tokens)
        self.is_ahead = True

    def began(self) -> None:
        self.count += 1
        self.samples += self._rows_ahead
        self.tokens += self._tokens_ahead
        self.most_rows = max(self.most_rows, self._rows_ahead)
        self.most_tokens = max(self.most_tokens, self._tokens_ahead)
        self.follow_forward |= self.is_ahead
        self._rows_ahead = self._tokens_ahead = 0
        self.is_ahead = False


class _Undecided(NamedTuple):
    """A forward pass in evaluation mode with gradients, and the largest evaluation batch before it."""

    rows: int
    tokens: int
    evaluation_batch: int | None


class _OfOptimizer(NamedTuple):
    """How many steps one optimizer has made, and the largest of them."""

    steps: int = 0
    micro_steps: int = 0
    samples: int = 0


class BatchCounts:
    """The batches of a run: the sum of their samples, and otherwise the largest, as the last may be smaller.

    Gradients come from backward passes, or a script asks for them and sets them itself. Where both are in one step, the
    requested gradients served something else, such as a penalty or the balance of several losses.

    ``takes_turns`` is set where several optimizers step in turn, as those of a GAN do: they may train on the same
    samples, so that nobody can add them up. One of them may also need several passes for each of its samples, so the
    step with the fewest gives the accumulation.

    ``trains_in_evaluation_mode`` is set while backward passes follow forward passes of a model in evaluation mode: a
    script may never call ``train()``, or not call it again. In a step that has passes in training mode as well, those
    in evaluation mode served something else, such as an attack on the model.
    """

    def __init__(self) -> None:
        self.micro_batch: int | None = None
        self._steps: dict[Hashable, _OfOptimizer] = {}
        self._one_with: dict[Hashable, Hashable] = {}
        self._last: Hashable = None
        self.takes_turns = self.trains_in_evaluation_mode = False
        self.largest_tokens: int | None = None
        self.checkpointed_blocks: int | None = None
        self.evaluation_batch: int | None = None
        self._trained_samples = 0
        self._is_countable = True
        self._blocks = 0
        self._undecided: _Undecided | None = None
        self._backward, self._in_evaluation_mode, self._asked = _Passes(), _Passes(), _Passes()

    @property
    def trained_samples(self) -> int | None:
        """The samples of all steps on this rank; None where those of a step could not be counted."""
        return self._trained_samples if self._is_countable and not self.takes_turns else None

    @property
    def micro_steps(self) -> int | None:
        """The micro-batches of a step; None before the first."""
        return self._of_step(each.micro_steps for each in self._steps.values())

    @property
    def samples_per_step(self) -> int | None:
        """Its samples, over all ranks; None where no model's inputs tell them."""
        return self._of_step(each.samples for each in self._steps.values()) or None

    @property
    def micro_steps_now(self) -> int:
        """The micro-batches since the last step."""
        return self._now.count

    @property
    def tokens_now(self) -> int:
        """The tokens since the last step."""
        return self._now.tokens

    def forward_began(self, rows: int, tokens: int) -> None:
        """Record a training forward pass of ``rows`` samples with ``tokens`` tokens in all; 0 if unknown."""
        self._undecided = None
        self._saw_batch(rows, tokens)
        for each in (self._backward, self._asked):
            each.forward_began(rows, tokens)
        self._blocks = 0

    @property
    def is_undecided(self) -> bool:
        """Whether the last forward pass may still turn out to train."""
        return self._undecided is not None

    def undecided_forward_began(self, rows: int, tokens: int) -> None:
        """Record a forward pass in evaluation mode with gradients: it trains if a backward pass follows next."""
        self._undecided = _Undecided(rows, tokens, self.evaluation_batch)
        self._blocks = 0

    def forward_without_gradients_began(self) -> None:
        """Record that what was undecided is an evaluation: no backward pass had followed."""
        self._undecided = None

    def evaluation_began(self, samples: int) -> None:
        """Record an evaluation batch; 0 samples means that they cannot be counted."""
        self.evaluation_batch = max(self.evaluation_batch or 0, samples) or None

    def block_checkpointed(self) -> None:
        """Record that a block runs under activation checkpointing."""
        self._blocks += 1

    def forward_ended(self) -> None:
        """Record the end of a forward pass."""
        self.checkpointed_blocks = max(self.checkpointed_blocks or 0, self._blocks)

    def backward_began(self) -> None:
        """Record a backward pass for everything seen since the last one."""
        undecided, self._undecided = self._undecided, None
        if self._backward.is_ahead or undecided is None:
            self.trains_in_evaluation_mode &= not self._backward.is_ahead
            self._backward.began()
            return
        if not self.trains_in_evaluation_mode:
            self.evaluation_batch = undecided.evaluation_batch
        self.trains_in_evaluation_mode = True
        self._in_evaluation_mode.forward_began(undecided.rows, undecided.tokens)
        self._in_evaluation_mode.began()

    def gradients_asked_for(self) -> None:
        """Record that the script requested gradients as values."""
        self._asked.began()

    def stepped(self, world: int, optimizer: Hashable = None) -> None:
        """A step of this ``optimizer`` over ``world`` ranks has ended."""
        optimizer = self._one_with.get(optimizer, optimizer)
        now, before = self._now, self._steps.get(optimizer, _OfOptimizer())
        self.takes_turns |= optimizer in self._steps and optimizer != self._last
        self._last = optimizer
        self._steps[optimizer] = _OfOptimizer(
            before.steps + 1, max(before.micro_steps, now.count), max(before.samples, now.samples * world)
        )
        self._saw_batch(now.most_rows, now.most_tokens)
        self._trained_samples += now.samples
        self._is_countable &= now.samples > 0 or not now.count
        self._backward, self._in_evaluation_mode, self._asked = _Passes(), _Passes(), _Passes()

    def stepped_on_same_gradients(self, optimizer: Hashable) -> None:
        """This ``optimizer`` has stepped on the gradients of the last step: it takes no separate turn."""
        if optimizer != self._last:
            self._one_with[optimizer] = self._last

    @property
    def most_steps(self) -> int:
        """The steps of the optimizer that has made the most."""
        return max((each.steps for each in self._steps.values()), default=0)

    def _of_step(self, values: Iterable[int]) -> int | None:
        return (min if self.takes_turns else max)(values, default=None)

    def _saw_batch(self, rows: int, tokens: int) -> None:
        self.micro_batch = max(self.micro_batch or 0, rows) or None
        self.largest_tokens = max(self.largest_tokens or 0, tokens) or None

    @property
    def _now(self) -> _Passes:
        if self._in_evaluation_mode.count and not self._backward.follow_forward:
            return self._in_evaluation_mode
        return self._backward if self._backward.count else self._asked
