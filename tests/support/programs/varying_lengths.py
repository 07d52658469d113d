"""A script whose batches differ in length from step to step: what a caching allocator fragments on."""

from __future__ import annotations

import torch

ROWS = (900, 2100, 1300, 3300, 1700, 4500)
WIDTH, LAYERS = 1024, 4

device = "cuda" if torch.cuda.is_available() else "cpu"
scales = torch.nn.ParameterList(torch.ones(WIDTH) for _ in range(LAYERS)).to(device)
optimizer = torch.optim.SGD(scales.parameters(), lr=1e-6)


class Scaling(torch.nn.Module):
    """Layers that keep their input, and compute next to nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.scales = scales

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        for scale in self.scales:
            hidden = torch.sigmoid(hidden * scale)
        return hidden.mean()


model = Scaling()
for rows in ROWS:
    model(torch.zeros(1, rows, WIDTH, device=device)).backward()
    optimizer.step()
    optimizer.zero_grad()
