"""Saves the row order of accelerate's shuffled loaders, so that a resumed epoch continues in it.

torch's samplers shuffle by a random generator, whose state at the start of a pass determines its order. accelerate's
own sampler, and those with a ``set_epoch``, shuffle by a seed and the number of the pass, the loader's ``iteration``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypedDict

_FILE = "data_order.json"  # not a name of MemTune's own: converting the checkpoint must copy it


class Order(TypedDict):
    """The state that determines the order of a pass. ``generator`` is the state in hexadecimal digits."""

    iteration: int
    seed: int | None
    generator: str | None


class RowOrder:
    """The order of one training loader, including what ``skip_first_batches`` makes of it."""

    def __init__(self, loader: Any) -> None:
        self._loader, self._sampler = loader, _sampler_of(loader)
        _give_generator(self._sampler)
        self._kept: Order | None = None  # what a save within a pass writes
        self._resumed: Order | None = None
        self._has_trained = False

    @property
    def may_be_restored(self) -> bool:
        """Whether the loader or one of its samplers has a state that the script may have loaded."""
        # accelerate's loaders have the method whether or not the loader below them has a state.
        below = getattr(self._loader, "base_dataloader", self._loader)
        return any(hasattr(each, "state_dict") for each in (below, *_samplers_of(self._loader)))

    def pass_begins(self, loader: Any) -> None:
        """Begin a pass, in the checkpoint's order if nothing was trained since it was loaded."""
        if self._resumed is not None:
            self._put(self._resumed)
        self._kept = self._now(_iteration(loader))

    def batch_given(self, loader: Any) -> None:
        """Record that the script gets a batch. After the last one, a save holds the order of the next pass."""
        if getattr(loader, "end_of_dataloader", False):
            self._kept = self._now(loader.iteration + 1)

    def pass_ends(self, loader: Any) -> None:
        """Record that a pass has ended or was left."""
        self._kept = None
        # accelerate counts passes for each loader, and a resumed pass uses another one.
        self._loader.iteration = max(_iteration(self._loader), _iteration(loader))

    def trains(self) -> None:
        """Record that a batch is trained: later passes have orders of their own."""
        self._resumed, self._has_trained = None, True

    def saved(self) -> Order:
        """Return the order in which a training resumed from a checkpoint of now must continue."""
        return self._kept or self._now(_iteration(self._loader))

    def resume(self, order: Order) -> None:
        """Restore a saved order for the next pass, unless this process has trained already."""
        if not self._has_trained:
            self._resumed = order
            self._put(order)

    def _now(self, iteration: int) -> Order:
        generator = _generator_of(self._sampler)
        state = None if generator is None else generator.get_state().numpy().tobytes().hex()
        return Order(iteration=iteration, seed=getattr(self._sampler, "initial_seed", None), generator=state)

    def _put(self, order: Order) -> None:
        import torch

        self._loader.iteration = order["iteration"]
        if hasattr(self._sampler, "set_epoch"):
            self._sampler.set_epoch(order["iteration"])  # accelerate does not after skipping batches on several GPUs
        if order["seed"] is not None:
            self._sampler.initial_seed = order["seed"]
        generator = _generator_of(self._sampler)
        if generator is not None and order["generator"] is not None:
            generator.set_state(torch.frombuffer(bytearray.fromhex(order["generator"]), dtype=torch.uint8))


def save(directory: Path, orders: Iterable[RowOrder]) -> None:
    """Write the orders of all training loaders into a checkpoint."""
    (directory / _FILE).write_text(json.dumps([each.saved() for each in orders]), encoding="ascii")


def resume(directory: Path, orders: Iterable[RowOrder]) -> None:
    """Restore the orders from a checkpoint."""
    file = directory / _FILE
    saved = json.loads(file.read_text(encoding="ascii")) if file.exists() else []
    for each, order in zip(orders, saved, strict=False):
        each.resume(order)


def _sampler_of(loader: Any) -> Any:
    """Return the sampler of the rows, below all wrappers of accelerate and ``skip_first_batches``."""
    return _samplers_of(loader)[-1]


def _samplers_of(loader: Any) -> list[Any]:
    """Return the batch samplers from the outermost on, and last the row sampler, which may be None."""
    batches: Any = getattr(loader, "batch_sampler", None)
    if batches is None:
        batches = getattr(loader, "sampler", None)  # a batch sampler that the script passed as the sampler
    found = [batches]
    while hasattr(found[-1], "batch_sampler"):
        found.append(found[-1].batch_sampler)
    return [*found, getattr(found[-1], "sampler", None)]


def _generator_of(sampler: Any) -> Any:
    import torch

    generator = getattr(sampler, "generator", None)
    return generator if isinstance(generator, torch.Generator) else None


def _give_generator(sampler: Any) -> None:
    """Give torch's samplers their own generator, as accelerate does on several GPUs.

    Otherwise they draw from the process's random state, as everything else does.
    """
    import torch
    from torch.utils.data import RandomSampler, SubsetRandomSampler, WeightedRandomSampler

    is_torchs = isinstance(sampler, (RandomSampler, SubsetRandomSampler, WeightedRandomSampler))
    if is_torchs and sampler.generator is None and not hasattr(sampler, "initial_seed"):
        sampler.generator = torch.Generator(device=torch.get_default_device())
        sampler.generator.manual_seed(int(torch.empty((), dtype=torch.int64).random_().item()))


def _iteration(loader: Any) -> int:
    return int(getattr(loader, "iteration", 0))
