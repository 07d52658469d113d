"""Adds up what the model's forward, the backward passes and the optimizer saw. Pure: the hooks call it."""

from __future__ import annotations


class Tally:
    """The batches of a run. What is kept is the largest: the last batch of an epoch may be smaller than the others."""

    def __init__(self) -> None:
        self.micro_batch: int | None = None
        self.micro_steps: int | None = None
        self.samples_per_step: int | None = None
        self.largest_tokens: int | None = None
        self.checkpointed_blocks: int | None = None
        self.micro_steps_now = 0
        self.tokens_now = 0
        self._blocks = 0
        self._samples_now = 0
        self._rows = 0
        self._tokens = 0

    def forward_began(self, rows: int, tokens: int) -> None:
        """The model is given ``rows`` samples of together ``tokens`` tokens to learn from."""
        self.micro_batch = max(self.micro_batch or 0, rows)
        self.largest_tokens = max(self.largest_tokens or 0, tokens)
        # Several models, or one of them several times, may see the same samples before a backward pass.
        self._rows, self._tokens = max(self._rows, rows), max(self._tokens, tokens)
        self._blocks = 0

    def block_checkpointed(self) -> None:
        """A part of the model runs under activation checkpointing."""
        self._blocks += 1

    def forward_ended(self) -> None:
        """The model has given its output."""
        self.checkpointed_blocks = max(self.checkpointed_blocks or 0, self._blocks)

    def backward_began(self) -> None:
        """The gradients of what was seen since the last backward pass are computed."""
        self.micro_steps_now += 1
        self._samples_now += self._rows
        self.tokens_now += self._tokens
        self._rows = self._tokens = 0

    def stepped(self, world: int) -> None:
        """An optimizer step over ``world`` ranks has ended."""
        self.micro_steps = max(self.micro_steps or 0, self.micro_steps_now)
        self.samples_per_step = max(self.samples_per_step or 0, self._samples_now * world)
        self.micro_steps_now = self._samples_now = self.tokens_now = 0
