"""Follows values on the emulated GPU while the script runs; may be imported before torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from memtune_runner.emulated.unfilled_weights import UnfilledWeights
from memtune_runner.emulated.value_reads import ValueReads


class ValueTracking:
    """Follows values while the script runs."""

    def __init__(self, unfilled: UnfilledWeights) -> None:
        self.reads, self._unfilled = ValueReads(), unfilled

    def report(self) -> list[dict[str, Any]]:
        """Return where the script read values."""
        return self.reads.report()

    @contextmanager
    def following(self, stands_for_all: bool) -> Iterator[None]:
        """Follow values from now on; torch must be imported. Other ranks are processes, or this one stands for all."""
        from memtune_runner.emulated.dispatch_mode import ValueMode
        from memtune_runner.emulated.mode_suspension import (
            counted_lengths,
            followed_in_hooks,
            followed_in_replicas,
            followed_masks,
            suspended_in_backward,
            suspended_in_compiled,
            trusted_counts,
        )
        from memtune_runner.emulated.triton_kernels import follow_kernels

        mode = ValueMode(self.reads, self._unfilled, stands_for_all)
        watch = follow_kernels(mode)
        try:
            with (
                suspended_in_backward(mode),
                followed_in_hooks(mode),
                followed_in_replicas(mode),
                followed_masks(mode),
                trusted_counts(self.reads),
                counted_lengths(),
                suspended_in_compiled(mode),
                mode,
            ):
                yield
        finally:
            watch.remove()
