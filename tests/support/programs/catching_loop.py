"""A loop that catches whatever its training raises, as some libraries' engines do, and goes on to its own end."""

from __future__ import annotations

import os
import sys

import torch

BATCH = int(os.environ["MEMTUNE_MICRO_BATCH"])


def main(kind: str) -> None:
    """Train six steps, the ``kind`` of which says where a batch is too large."""
    model = torch.nn.Sequential(torch.nn.Linear(256, 256))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    try:
        for step in range(6):
            is_large = (kind, step) in {("middle", 1), ("last", 5), ("exits", 3)}
            try:
                loss = model(torch.randn(BATCH * (10_000 if is_large else 1), 256)).sum()
                loss.backward()
            except torch.OutOfMemoryError:
                if kind == "exits":
                    break
                continue
            optimizer.step()
            optimizer.zero_grad()
            if kind == "evaluation within" and step == 3:
                evaluate(model)
        if kind == "evaluation":
            evaluate(model)
    except Exception as error:
        print(f"caught {type(error).__name__}", flush=True)
    if kind == "exits":
        sys.exit(3)


def evaluate(model: torch.nn.Module) -> None:
    """Evaluate a batch that is too large."""
    model.eval()
    with torch.no_grad():
        model(torch.randn(BATCH, 256))
        model(torch.randn(BATCH * 10_000, 256))


if __name__ == "__main__":
    main(sys.argv[1])
