"""A script's data loader in the micro-batches of a plan."""

from __future__ import annotations

from copy import copy
from typing import Any

from memtune_runner.integrations.padding import PaddingCollator


def training_loader(loaders: list[Any], takes_in_order: bool = True) -> Any:
    """Of several loaders the one that is trained on: the first that shuffles or streams, else the first if allowed."""
    first = loaders[0] if loaders and takes_in_order else None
    return next((each for each in loaders if not is_in_order(each)), first)


def samples_of_pass(loader: Any, batches: int | None = None) -> int | None:
    """The samples that this rank is given in a pass, or in so many batches of it; None where nobody can know."""
    sampler, size = getattr(loader, "batch_sampler", None), batch_size_of(loader)
    # What accelerate dispatches is read by one rank for all of them.
    is_shared = type(loader).__name__ == "DataLoaderDispatcher" and loader.state.num_processes > 1
    if size is None or is_shared:
        return None
    try:
        return _samples_of(sampler, size, batches)
    except TypeError:
        return None  # a stream


def _samples_of(sampler: Any, size: int, batches: int | None) -> int | None:
    from torch.utils.data import BatchSampler

    from memtune_runner.integrations.whole_batches import WholeBatches

    count = len(sampler) if batches is None else batches
    if getattr(sampler, "even_batches", False):  # accelerate's share of a rank: filled up from the beginning
        return count * (size // int(sampler.num_processes if sampler.split_batches else 1))
    if isinstance(sampler, WholeBatches):
        return min(count * size, sampler.rows)
    if getattr(type(sampler), "__len__", None) is not BatchSampler.__len__:
        return None  # one of the script's own
    return min(count * size, len(sampler.sampler))


def in_micro_batches(loader: Any, micro_batch: int, pad_to: int | None, ranks: int | None = None) -> Any:
    """The same loader with batches of this size, and of this sequence length where one is given.

    Where the script drops what does not fill its own batch on each of so many ``ranks``, just that is dropped.
    A copy is changed instead of a new loader being made: it stays of its class, with all of its options, and data
    that is streamed is handed over only once.
    """
    changed = copy(loader)
    # Past the loader's own __setattr__, which lets nobody change these once it is made.
    vars(changed).update(_iterator=None, **_batches(loader, micro_batch, ranks))
    if pad_to is not None:
        changed.collate_fn = PaddingCollator(loader.collate_fn, pad_to)
    return changed


def _batches(loader: Any, micro_batch: int, ranks: int | None) -> dict[str, Any]:
    """The attributes by which a loader makes its batches; none where the script makes them by itself."""
    from torch.utils.data import BatchSampler

    from memtune_runner.integrations.whole_batches import WholeBatches

    sampler = loader.batch_sampler
    if type(sampler) is not BatchSampler:
        return {}  # what it makes is seen at the model's forward
    batch_size = None if loader.batch_size is None else micro_batch  # torch keeps none beside a given batch_sampler
    if ranks and sampler.drop_last and hasattr(sampler.sampler, "__len__"):
        whole = WholeBatches(sampler.sampler, micro_batch, sampler.batch_size * ranks)
        return {"batch_size": batch_size, "batch_sampler": whole}
    return {
        "batch_size": batch_size,
        "batch_sampler": BatchSampler(sampler.sampler, micro_batch, sampler.drop_last),
    }


def batch_size_of(loader: Any) -> int | None:
    """The size of a loader's batches; None where the script makes them by itself."""
    size = getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
    return size if isinstance(size, int) else None


def is_in_order(loader: Any) -> bool:
    """Whether a loader takes its samples one after the other, as one for an evaluation does."""
    from torch.utils.data import SequentialSampler

    # Beside a batch_sampler that was given torch fills in a sampler that nobody asks.
    sampler = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    return isinstance(getattr(sampler, "sampler", sampler), SequentialSampler)
