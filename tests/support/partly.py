"""A model with unused weights, as in models whose parts are frozen by running them without gradients."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from memtune_runner.tracing.factory import Subject


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(128, 512), nn.Linear(512, 128)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        wide = functional.gelu(self.up(hidden))
        return torch.add(hidden, self.down(wide))


class Partly(nn.Module):
    """Some weights get no gradient, and some have fewer rows than there are ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(128, 2048)
        self.positions = nn.Parameter(torch.zeros(1, 64, 128))
        self.layers = nn.ModuleList(Layer() for _ in range(4))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        hidden = hidden + self.positions
        for number, layer in enumerate(self.layers):
            with torch.set_grad_enabled(number > 0):
                hidden = layer(hidden)
        return hidden.square().mean()


def partly() -> Subject:
    return Subject(Partly(), lambda rows: torch.zeros(rows, 64, 128), lambda model, batch: model(batch))
