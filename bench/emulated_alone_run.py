"""Trains a model that nothing wraps under several plans on the emulated GPU, each in a fork.

    python bench/emulated_alone_run.py FILE MODEL PLAN:1 [PLAN:1 ...]

Run by `memtune emulate`. Each plan adds a line of JSON to FILE. So train transformers' Trainer and most scripts on one
GPU: gradients are tensors of their own, and no bucket holds them.
"""

from __future__ import annotations

import sys
from functools import partial

import emulated_pair_run
from torch import nn

from memtune_runner.engine.precision import cast_weights
from memtune_runner.engine.protocol import Setup
from memtune_runner.engine.torch_backend import TorchBackend


class Alone(TorchBackend):
    """A model on one GPU, and torch's optimizer."""

    def __init__(self, model: nn.Module, setup: Setup) -> None:
        cast_weights(model, setup.settings.plan)
        super().__init__(model, setup)

    def begin(self, is_last: bool) -> None:
        """Nothing is reduced."""


if __name__ == "__main__":
    sys.exit(emulated_pair_run.main(sys.argv[1:], partial(emulated_pair_run.in_a_fork, wrap=Alone)))
