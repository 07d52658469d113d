"""A loop that catches whatever its training raises, as some libraries' engines do, and goes on to its own end."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

import torch

BATCH = int(os.environ["MEMTUNE_MICRO_BATCH"])


def main(kind: str) -> None:
    """Train six steps, the ``kind`` of which says where a batch is too large."""
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), Trying(kind == "swallowed"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    try:
        for step in range(6):
            if not train(kind, step, model, optimizer):
                break
            if kind == "evaluation within" and step == 3:
                evaluate(model)
            if (kind, step) == ("falls back", 5):
                with suppress(torch.OutOfMemoryError):
                    evaluate(model)
                with torch.no_grad():
                    model(torch.randn(BATCH, 256))
        if kind == "evaluation":
            evaluate(model)
    except Exception as error:
        print(f"caught {type(error).__name__}", flush=True)
    if kind == "exits":
        sys.exit(3)


def train(kind: str, step: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> bool:
    """Train one step, or skip it; whether the loop goes on."""
    is_large = (kind, step) in {("middle", 1), ("last", 5), ("exits", 3)}
    try:
        loss = model(torch.randn(BATCH * (10_000 if is_large else 1), 256)).sum()
        loss.backward()
    except torch.OutOfMemoryError:
        return kind != "exits"
    except Exception as error:
        if kind != "catches all":
            raise
        print(f"caught {type(error).__name__}", flush=True)
        return True
    optimizer.step()
    optimizer.zero_grad()
    return True


class Trying(torch.nn.Module):
    """Tries something too large first, as cuDNN does with the workspaces of its algorithms."""

    def __init__(self, tries: bool) -> None:
        super().__init__()
        self.tries = tries

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Return the values."""
        if self.tries:
            with suppress(torch.OutOfMemoryError):
                values.repeat(10_000, 1)
        return values


def evaluate(model: torch.nn.Module) -> None:
    """Evaluate a batch that is too large."""
    model.eval()
    with torch.no_grad():
        model(torch.randn(BATCH, 256))
        model(torch.randn(BATCH * 10_000, 256))


if __name__ == "__main__":
    main(sys.argv[1])
