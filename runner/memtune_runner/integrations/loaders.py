"""Changes a script's data loader to the micro-batches of a plan."""

from __future__ import annotations

from copy import copy
from typing import Any

from memtune_runner.integrations.padding_collator import PaddingCollator


def training_loader(loaders: list[Any], takes_in_order: bool = True) -> Any:
    """Return the training loader: the first that shuffles or streams, else the first if ``takes_in_order``."""
    first = loaders[0] if loaders and takes_in_order else None
    return next((each for each in loaders if not is_in_order(each)), first)


def samples_of_pass(loader: Any, batches: int | None = None) -> int | None:
    """Return this rank's samples in a pass, or in so many of its batches; None if unknown."""
    sampler, size = getattr(loader, "batch_sampler", None), batch_size_of(loader)
    # One rank reads for all ranks what accelerate dispatches.
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
    if getattr(sampler, "even_batches", False):  # accelerate's share of a rank, filled up from the beginning
        return count * (size // int(sampler.num_processes if sampler.split_batches else 1))
    if isinstance(sampler, WholeBatches):
        return min(count * size, sampler.rows)
    if getattr(type(sampler), "__len__", None) is not BatchSampler.__len__:
        return None  # the script's own
    return min(count * size, len(sampler.sampler))


def in_micro_batches(loader: Any, micro_batch: int, pad_to: int | None, ranks: int | None = None) -> Any:
    """Return the loader with batches of this size, and of this sequence length if one is given.

    If the script drops an incomplete batch of its own size on each of ``ranks``, the same rows are dropped. The loader
    is copied and changed rather than created: it keeps its class and options, and streamed data is opened only once.
    """
    changed = copy(loader)
    # Bypass the loader's __setattr__, which forbids changing these after creation.
    vars(changed).update(_iterator=None, **_batches(loader, micro_batch, ranks))
    if pad_to is not None:
        changed.collate_fn = PaddingCollator(loader.collate_fn, pad_to)
    return changed


def _batches(loader: Any, micro_batch: int, ranks: int | None) -> dict[str, Any]:
    """Return the attributes by which a loader makes its batches; none if the script makes them itself."""
    from torch.utils.data import BatchSampler

    from memtune_runner.integrations.whole_batches import WholeBatches

    sampler = loader.batch_sampler
    if type(sampler) is not BatchSampler:
        return {}  # its batches are seen at the model's forward
    batch_size = None if loader.batch_size is None else micro_batch  # torch keeps none beside a custom batch_sampler
    if ranks and sampler.drop_last and hasattr(sampler.sampler, "__len__"):
        whole = WholeBatches(sampler.sampler, micro_batch, sampler.batch_size * ranks)
        return {"batch_size": batch_size, "batch_sampler": whole}
    return {
        "batch_size": batch_size,
        "batch_sampler": BatchSampler(sampler.sampler, micro_batch, sampler.drop_last),
    }


def batch_size_of(loader: Any) -> int | None:
    """Return a loader's batch size; None if the script makes the batches itself."""
    size = getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
    return size if isinstance(size, int) else None


def is_in_order(loader: Any) -> bool:
    """Whether a loader takes its samples in order, as for an evaluation."""
    from torch.utils.data import SequentialSampler

    # Beside a custom batch_sampler, torch fills in a sampler that is never used.
    sampler = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    return isinstance(getattr(sampler, "sampler", sampler), SequentialSampler)
