"""The passes that a script of accelerate's makes over the loaders that it trains on, and their samples on this rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from memtune_runner.integrations.loaders import samples_of_pass
from memtune_runner.integrations.row_order import RowOrder


@dataclass
class Followed:
    """A loader that the script trains on."""

    loader: Any
    batches: int | None  # None where it is not known how many
    samples: int | None  # of a pass on this rank; None where it is not known how many
    order: RowOrder
    taken: int = 0  # batches of a pass that has not come to its end
    trained_after: int | None = None  # the steps that were made before the first batch of the pass was trained
    passed_over: int = 0  # the samples of the pass that a resumed script took and did not train


class Passes:
    """The loaders that are followed, and what was begun of them.

    ``steps`` tells the optimizer steps behind the weights; ``micro_batch`` is the samples of a batch.
    """

    def __init__(self, steps: Callable[[], int], micro_batch: int) -> None:
        self._steps, self._micro_batch = steps, micro_batch
        self._samples: int | None = 0  # of the passes that have ended or were left
        self.loaders: list[Followed] = []

    def follow(self, loader: Any, order: RowOrder | None = None) -> Followed:
        """Follow a loader that accelerate has prepared, or made of one in whose order it gives its rows."""
        try:
            batches = len(loader)  # not told to the script: the loader is not followed yet
        except TypeError:
            batches = None
        self.loaders.append(Followed(loader, batches, samples_of_pass(loader), order or RowOrder(loader)))
        return self.loaders[-1]

    @property
    def orders(self) -> list[RowOrder]:
        """The orders of all loaders, each once."""
        return list(dict.fromkeys(each.order for each in self.loaders))

    def of(self, loader: Any) -> Followed | None:
        """What is known of a loader; None if it is not followed."""
        return next((each for each in self.loaders if each.loader is loader), None)

    def train(self, passed_over: Callable[[Followed], int]) -> None:
        """A batch is trained; ``passed_over`` tells the samples before it that are left out of a pass."""
        begun = [each for each in self.loaders if each.taken]
        if not begun:
            self._samples = None  # the script has kept the batches of a pass: nobody sees how often it uses them
        for order in self.orders:
            order.trains()
        for each in begun:
            if each.trained_after is None:
                each.trained_after, each.passed_over = self._steps(), passed_over(each)

    def is_left_at_once(self, followed: Followed, own_accumulation: int) -> bool:
        """Whether a pass was left within a first step of the script's own, although others have made steps."""
        steps = self._steps()
        return steps > 0 and followed.taken <= own_accumulation and followed.trained_after == steps

    def end(self, followed: Followed, missing_batches: int = 0) -> None:
        """A pass has come to its end, so many batches too early, or was left; one without a step trained nothing."""
        if followed.trained_after is not None and self._steps() > followed.trained_after:
            if followed.samples is None or self._samples is None:
                self._samples = None
            else:
                self._samples += followed.samples - followed.passed_over - missing_batches * self._micro_batch
        followed.taken, followed.trained_after, followed.passed_over = 0, None, 0

    def begun_samples(self) -> int | None:
        """The samples of all passes in which a step was made; None where they are not known. No pass goes on after."""
        for each in self.loaders:
            self.end(each)
        return self._samples if self.loaders else None
