"""How far a Trainer was in its epoch, in the batches of another plan; and the data that it goes on with.

Lightning counts batches, not samples, and begins an epoch's data anew where it resumes in the middle of one.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from torch.utils.data import BatchSampler, DistributedSampler, IterableDataset, RandomSampler

from memtune.plans.plan import Plan


class Cut(NamedTuple):
    """How an optimizer step's samples are cut into batches."""

    micro_batch: int
    accumulation: int
    world: int

    @classmethod
    def of(cls, plan: Plan, world: int) -> Cut:
        """The cut of a plan over so many ranks."""
        return cls(plan.micro_batch, plan.accumulation, world)


def recounted(progress: dict[str, Any], saved: Cut, wanted: Cut, *, across_epochs: bool) -> dict[str, Any]:
    """The state of Lightning's ``batch_progress`` in the batches of the wanted cut.

    ``across_epochs`` tells whether a step may begin in one epoch and end in the next, as DeepSpeed's do.
    """
    now = progress["current"]["processed"]
    before = progress["total"]["processed"] - now
    # In the middle of a step its gradients are lost: its samples are trained again.
    unfinished = (before + now if across_epochs else now) % saved.accumulation
    batches = _ending(now, saved, wanted) if progress["is_last_batch"] else _within(now - unfinished, saved, wanted)
    return {
        **progress,
        "current": _moved(progress["current"], batches),
        "total": _moved(progress["total"], batches + _ending(before, saved, wanted)),
    }


def _within(batches: int, saved: Cut, wanted: Cut) -> int:
    """Within an epoch: rather a sample twice than one left out."""
    return batches * saved.micro_batch * saved.world // (wanted.micro_batch * wanted.world)


def _ending(batches: int, saved: Cut, wanted: Cut) -> int:
    """Over whole epochs, of which the last batch may be smaller."""
    return math.ceil(batches * saved.micro_batch * saved.world / (wanted.micro_batch * wanted.world))


def _moved(counts: dict[str, int], processed: int) -> dict[str, int]:
    return {name: processed + count - counts["processed"] for name, count in counts.items()}


def goes_on(loader: Any, epoch: int, skipped: int) -> None:
    """Let a loader begin behind the batches that the epoch has trained already."""
    batches = loader.batch_sampler
    if type(batches) is not BatchSampler or isinstance(loader.dataset, IterableDataset):
        if skipped and not hasattr(loader, "load_state_dict"):
            print(
                f"memtune: the training goes on behind {skipped} batches of epoch {epoch}, which are not skipped: they "
                "are streamed, or the script makes them by itself; give its DataLoader state_dict and "
                "load_state_dict, or save at the end of epochs",
                file=sys.stderr,
            )
        return
    sampler = _in_an_order_of_its_epoch(batches.sampler)
    if hasattr(sampler, "set_epoch"):
        # Workers are given their first indices before Lightning tells the epoch.
        sampler.set_epoch(epoch)
    remaining = _Remaining(sampler, batches.batch_size, batches.drop_last, skipped)
    vars(loader).update(sampler=sampler, batch_sampler=remaining)


def _in_an_order_of_its_epoch(sampler: Any) -> Any:
    """torch shuffles with the process's random numbers; a resumed process would shuffle otherwise.

    Over several ranks Lightning shuffles by seed and epoch. Over one rank this does the same.
    """
    is_plain = type(sampler) is RandomSampler and sampler.generator is None and not sampler.replacement
    if not is_plain or sampler.num_samples != len(sampler.data_source):
        return sampler
    seed = int(os.environ.get("PL_GLOBAL_SEED", "0"))
    return DistributedSampler(sampler.data_source, num_replicas=1, rank=0, shuffle=True, seed=seed)


class _Remaining(BatchSampler):
    """As many batches as there are in an epoch, but the first time it is asked only those that remain."""

    def __init__(self, sampler: Any, batch_size: int, drop_last: bool, skipped: int) -> None:
        super().__init__(sampler, batch_size, drop_last)
        self._skipped = skipped

    def __iter__(self) -> Iterator[list[int]]:
        skipped, self._skipped = self._skipped, 0
        for number, batch in enumerate(super().__iter__()):
            if number >= skipped:
                yield batch
