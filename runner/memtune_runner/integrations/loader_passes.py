"""Counts the passes of an accelerate script over its training loaders, and their samples on this rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from memtune_runner.integrations.epoch_loops import EpochLoops, Variables
from memtune_runner.integrations.loaders import samples_of_pass
from memtune_runner.integrations.row_order import RowOrder


@dataclass
class Loop:
    """How a script trains with one Accelerator. ``argument`` is the accumulation that it passed, None for none."""

    argument: int | None
    own_share: int = 0  # samples per batch of the script's own loader, over all ranks
    is_within: bool = False  # a call of accumulate()

    def __post_init__(self) -> None:
        self.begin_again()

    def begin_again(self) -> None:
        """Forget how the training before accumulated."""
        self.own: int | None = self.argument
        self.accumulates = self.length_was_read = False


@dataclass
class Followed:
    """A loader that the script trains on."""

    loader: Any
    loop: Loop
    batches: int | None  # None if unknown
    samples: int | None  # of a pass on this rank; None if unknown
    order: RowOrder
    position: int = 0  # in a pass that has not ended: its batches so far
    given: int = 0  # batches since the last call of accumulate()
    given_before: tuple[int, ...] = ()  # the last of these calls, each since the one before it
    trained_after: int | None = None  # the steps made before the first batch of the pass was trained
    passed_over: int = 0  # the samples of the pass that a resumed script consumed without training
    variables: Variables = field(default_factory=dict)  # of the loops around the pass


class Passes:
    """The training loaders and their current passes.

    ``steps`` returns the optimizer steps made so far; ``micro_batch`` is the samples of a batch.
    """

    def __init__(self, steps: Callable[[], int], micro_batch: int) -> None:
        self._steps, self._micro_batch = steps, micro_batch
        self._samples: int | None = 0  # of the passes that have ended or were left
        self.loaders: list[Followed] = []
        self.epochs = EpochLoops()

    def follow(self, loader: Any, loop: Loop, order: RowOrder | None = None) -> Followed:
        """Follow a loader that accelerate has prepared, or one made from it with the same order of rows."""
        try:
            batches = len(loader)  # the script does not see this: the loader is not followed yet
        except TypeError:
            batches = None
        self.loaders.append(Followed(loader, loop, batches, samples_of_pass(loader), order or RowOrder(loader)))
        return self.loaders[-1]

    @property
    def orders(self) -> list[RowOrder]:
        """The orders of all loaders, each once."""
        return list(dict.fromkeys(each.order for each in self.loaders))

    def of(self, loader: Any) -> Followed | None:
        """Return the record of a loader; None if it is not followed."""
        return next((each for each in self.loaders if each.loader is loader), None)

    def most_given(self, loop: Loop) -> int:
        """Return the most batches that one loader has given since the loop's last call of accumulate()."""
        return max((each.given for each in self.loaders if each.loop is loop), default=0)

    def train(self, passed_over: Callable[[Followed], int] | None) -> None:
        """Record that a batch is trained; ``passed_over`` returns the samples skipped before it in a pass.

        It is None in a training that no checkpoint is of.
        """
        begun = [each for each in self.loaders if each.position]
        if not begun:
            self._samples = None  # the script kept the batches of a pass, so their uses cannot be counted
        for order in self.orders:
            order.trains()
        for each in begun:
            if each.trained_after is None:
                each.trained_after = self._steps()
                if passed_over is None:
                    each.variables = {}
                    continue
                each.passed_over = passed_over(each)
                self.epochs.trains(each.variables)

    def left_in_first_step(self, followed: Followed) -> bool:
        """Whether a pass was left within the script's first accumulated step, although other passes made steps."""
        steps = self._steps()
        return steps > 0 and followed.position <= (followed.loop.own or 1) and followed.trained_after == steps

    def end(self, followed: Followed, missing_batches: int | None = None) -> None:
        """End a pass, ``missing_batches`` too early or, without a number, by leaving it.

        A pass without a step trained nothing.
        """
        if followed.trained_after is not None and self._steps() > followed.trained_after:
            if followed.samples is None or self._samples is None:
                self._samples = None
            else:
                self._samples += followed.samples - followed.passed_over - (missing_batches or 0) * self._micro_batch
            if followed.variables:
                self.epochs.pass_ended(followed.variables)
        if followed.position and missing_batches is None:
            self.epochs.pass_left()
        followed.position, followed.trained_after, followed.passed_over = 0, None, 0
        followed.variables = {}

    def begun_samples(self) -> int | None:
        """End all passes and return the samples of those in which a step was made; None if unknown."""
        for each in self.loaders:
            self.end(each)
        return self._samples if self.loaders else None
