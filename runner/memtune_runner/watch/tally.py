"""Tallies batches, micro-batches and tokens from what the hooks see. Pure."""

from __future__ import annotations


class _Passes:
    """The passes that yielded the gradients of one step, each with the samples seen since the previous pass."""

    def __init__(self) -> None:
        self.count = self.samples = self.tokens = 0
        self._rows_ahead = self._tokens_ahead = 0

    def forward_began(self, rows: int, tokens: int) -> None:
        # Several forward passes may see the same samples before one backward pass.
        self._rows_ahead, self._tokens_ahead = max(self._rows_ahead, rows), max(self._tokens_ahead, tokens)

    def began(self) -> None:
        self.count += 1
        self.samples += self._rows_ahead
        self.tokens += self._tokens_ahead
        self._rows_ahead = self._tokens_ahead = 0


class Tally:
    """The batches of a run: the sum of their samples, and otherwise the largest, as the last may be smaller.

    Gradients come from backward passes, or the script requests them and sets them itself. In a step with both, the
    requested ones served something else, such as a gradient penalty or balancing several losses.
    """

    def __init__(self) -> None:
        self.micro_batch: int | None = None
        self.micro_steps: int | None = None
        self.samples_per_step: int | None = None
        self.largest_tokens: int | None = None
        self.checkpointed_blocks: int | None = None
        self.evaluation_batch: int | None = None
        self._trained_samples = 0
        self._is_countable = True
        self._blocks = 0
        self._backward, self._asked = _Passes(), _Passes()

    @property
    def trained_samples(self) -> int | None:
        """The samples of all steps on this rank; None if those of a step could not be counted."""
        return self._trained_samples if self._is_countable else None

    @property
    def micro_steps_now(self) -> int:
        """The micro-batches since the last step."""
        return self._now.count

    @property
    def tokens_now(self) -> int:
        """The tokens since the last step."""
        return self._now.tokens

    def forward_began(self, rows: int, tokens: int) -> None:
        """Record a training forward pass of ``rows`` samples with ``tokens`` tokens in all."""
        self.micro_batch = max(self.micro_batch or 0, rows)
        self.largest_tokens = max(self.largest_tokens or 0, tokens)
        for each in (self._backward, self._asked):
            each.forward_began(rows, tokens)
        self._blocks = 0

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
        self._backward.began()

    def gradients_asked_for(self) -> None:
        """Record that the script requested gradients as values."""
        self._asked.began()

    def stepped(self, world: int) -> None:
        """Record the end of an optimizer step over ``world`` ranks."""
        now = self._now
        self.micro_steps = max(self.micro_steps or 0, now.count)
        self.samples_per_step = max(self.samples_per_step or 0, now.samples * world)
        self._trained_samples += now.samples
        self._is_countable &= now.samples > 0 or not now.count
        self._backward, self._asked = _Passes(), _Passes()

    @property
    def _now(self) -> _Passes:
        return self._backward if self._backward.count else self._asked
