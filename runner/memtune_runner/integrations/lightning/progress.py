"""Converts a Trainer's progress within an epoch to another plan's batches, and skips data accordingly.

Lightning counts batches instead of samples, and restarts an epoch's data when it resumes within one.
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
    """How an optimizer step's samples are divided into batches."""

    micro_batch: int
    accumulation: int
    world: int

    @classmethod
    def of(cls, plan: Plan, world: int) -> Cut:
        """Return the division under a plan over ``world`` ranks."""
        return cls(plan.micro_batch, plan.accumulation, world)


def recounted(progress: dict[str, Any], saved: Cut, wanted: Cut, *, across_epochs: bool) -> dict[str, Any]:
    """Convert the state of Lightning's ``batch_progress`` to the batches of the wanted cut.

    ``across_epochs`` says whether a step may begin in one epoch and end in the next, as DeepSpeed's do.
    """
    now = progress["current"]["processed"]
    before = progress["total"]["processed"] - now
    # A partial step's gradients are lost, so its samples are trained again.
    unfinished = (before + now if across_epochs else now) % saved.accumulation
    batches = _ending(now, saved, wanted) if progress["is_last_batch"] else _within(now - unfinished, saved, wanted)
    return {
        **progress,
        "current": _moved(progress["current"], batches),
        "total": _moved(progress["total"], batches + _ending(before, saved, wanted)),
    }


def _within(batches: int, saved: Cut, wanted: Cut) -> int:
    """Convert within an epoch; rather repeat a sample than skip one."""
    return batches * saved.micro_batch * saved.world // (wanted.micro_batch * wanted.world)


def _ending(batches: int, saved: Cut, wanted: Cut) -> int:
    """Convert whole epochs, whose last batch may be smaller."""
    return math.ceil(batches * saved.micro_batch * saved.world / (wanted.micro_batch * wanted.world))


def _moved(counts: dict[str, int], processed: int) -> dict[str, int]:
    return {name: processed + count - counts["processed"] for name, count in counts.items()}


def goes_on(loader: Any, epoch: int, skipped: int) -> None:
    """Let a loader skip the batches that the epoch has trained already."""
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
        # Workers get their first indices before Lightning sets the epoch.
        sampler.set_epoch(epoch)
    remaining = _Remaining(sampler, batches.batch_size, batches.drop_last, skipped)
    vars(loader).update(sampler=sampler, batch_sampler=remaining)


def _in_an_order_of_its_epoch(sampler: Any) -> Any:
    """Replace torch's shuffling by the process's random state, which a resumed process would not repeat.

    Over several ranks Lightning shuffles by seed and epoch; this does the same for one rank.
    """
    is_plain = type(sampler) is RandomSampler and sampler.generator is None and not sampler.replacement
    if not is_plain or sampler.num_samples != len(sampler.data_source):
        return sampler
    seed = int(os.environ.get("PL_GLOBAL_SEED", "0"))
    return DistributedSampler(sampler.data_source, num_replicas=1, rank=0, shuffle=True, seed=seed)


class _Remaining(BatchSampler):
    """Has the length of a whole epoch, but the first iteration yields only the remaining batches."""

    def __init__(self, sampler: Any, batch_size: int, drop_last: bool, skipped: int) -> None:
        super().__init__(sampler, batch_size, drop_last)
        self._skipped = skipped

    def __iter__(self) -> Iterator[list[int]]:
        skipped, self._skipped = self._skipped, 0
        for number, batch in enumerate(super().__iter__()):
            if number >= skipped:
                yield batch
