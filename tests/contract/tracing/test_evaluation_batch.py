"""The memory of an evaluation batch of a traced model, against a count of its tensors."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from memtune.memory.replay.replays import forward_bytes
from memtune.units import GIB
from memtune_runner.tracing import trace_subject
from memtune_runner.tracing.factory import Subject
from memtune_runner.virtual.gpu import VirtualGpu

LENGTH, WIDTH, WORDS = 32, 64, 512


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        added: torch.Tensor = self.narrow(torch.relu(self.wide(self.norm(hidden))))
        return hidden + added


def language_model() -> Subject:
    model = nn.Sequential(nn.Embedding(WORDS, WIDTH), *(Block() for _ in range(3)), nn.Linear(WIDTH, WORDS))
    return Subject(model, lambda rows: torch.zeros(rows, LENGTH, dtype=torch.long), _next_words)


def _next_words(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch).flatten(0, 1), batch.flatten())


def conv_net() -> Subject:
    model = nn.Sequential(*(nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.ReLU()) for _ in range(3)))
    return Subject(model, lambda rows: torch.zeros(rows, 3, 16, 16), lambda built, batch: built(batch).mean())


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("make", [language_model, conv_net])
@pytest.mark.usefixtures("one_thread")
def test_a_forward_pass_without_gradients_takes_the_counted_memory(make: Callable[[], Subject], rows: int) -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        program = trace_subject(make(), 2, LENGTH, ["full"], as_gpu=False).program("full")
    assert forward_bytes(program, rows) == pytest.approx(counted(make, rows), rel=0.01)


def counted(make: Callable[[], Subject], rows: int) -> int:
    """Return the peak bytes of an evaluation batch besides the model."""
    with VirtualGpu(GIB) as gpu:
        subject = make()
        gc.collect()
        before = gpu.memory_stats()["requested_bytes.all.current"]
        gpu.reset_peak_memory_stats()
        with torch.no_grad():
            subject.loss(subject.model, subject.batch(rows))
        return gpu.memory_stats()["requested_bytes.all.peak"] - before
