"""Adds up what the model's forward, the backward passes and the optimizer saw. Pure: the hooks call it."""

from __future__ import annotations


class _Passes:
    """What one step saw in the passes that yielded its gradients, each with what was seen since the one before."""

    def __init__(self) -> None:
        self.count = self.samples = self.tokens = 0
        self._rows_ahead = self._tokens_ahead = 0

    def forward_began(self, rows: int, tokens: int) -> None:
        # Several models, or one of them several times, may see the same samples before a backward pass.
        self._rows_ahead, self._tokens_ahead = max(self._rows_ahead, rows), max(self._tokens_ahead, tokens)

    def began(self) -> None:
        self.count += 1
        self.samples += self._rows_ahead
        self.tokens += self._tokens_ahead
        self._rows_ahead = self._tokens_ahead = 0


class Tally:
    """The batches of a run: the samples of all of them, and else the largest, since the last one may be smaller.

    Gradients come from backward passes, or a script asks for them and sets them itself. Where both are in one step,
    what was asked for served something else, such as a penalty or the balance of several losses.
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
        """The samples of all steps on this rank; None where those of a step could not be counted."""
        return self._trained_samples if self._is_countable else None

    @property
    def micro_steps_now(self) -> int:
        """The micro-batches since the last step."""
        return self._now.count

    @property
    def tokens_now(self) -> int:
        """The tokens in them."""
        return self._now.tokens

    def forward_began(self, rows: int, tokens: int) -> None:
        """The model is given ``rows`` samples of together ``tokens`` tokens to learn from."""
        self.micro_batch = max(self.micro_batch or 0, rows)
        self.largest_tokens = max(self.largest_tokens or 0, tokens)
        for each in (self._backward, self._asked):
            each.forward_began(rows, tokens)
        self._blocks = 0

    def evaluation_began(self, samples: int) -> None:
        """The model is given so many samples to evaluate; 0 where they cannot be counted."""
        self.evaluation_batch = max(self.evaluation_batch or 0, samples) or None

    def block_checkpointed(self) -> None:
        """A part of the model runs under activation checkpointing."""
        self._blocks += 1

    def forward_ended(self) -> None:
        """The model has given its output."""
        self.checkpointed_blocks = max(self.checkpointed_blocks or 0, self._blocks)

    def backward_began(self) -> None:
        """The gradients of what was seen since the last backward pass are computed."""
        self._backward.began()

    def gradients_asked_for(self) -> None:
        """The script takes them as values, to do with them what it likes."""
        self._asked.began()

    def stepped(self, world: int) -> None:
        """An optimizer step over ``world`` ranks has ended."""
        now = self._now
        self.micro_steps = max(self.micro_steps or 0, now.count)
        self.samples_per_step = max(self.samples_per_step or 0, now.samples * world)
        self._trained_samples += now.samples
        self._is_countable &= now.samples > 0 or not now.count
        self._backward, self._asked = _Passes(), _Passes()

    @property
    def _now(self) -> _Passes:
        return self._backward if self._backward.count else self._asked
