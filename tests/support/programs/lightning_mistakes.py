"""Trainings with Lightning of which each has one thing that contradicts a plan. The argument says which."""

from __future__ import annotations

import sys
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from torch.utils.data import DataLoader, TensorDataset

mistake = sys.argv[1]


class Linear(lightning.LightningModule):
    """The smallest module there is."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = mistake != "steps-by-itself"
        self.layer = torch.nn.Linear(8, 8)

    def training_step(self, batch: list[torch.Tensor], _: int) -> Any:
        return self.layer(batch[0]).sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


if mistake in ("joint-setup", "fabric"):
    fabric = lightning.Fabric()
    fabric.launch()
    model = torch.nn.Linear(8, 8)
    fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
else:
    callbacks: list[Any] = [GradientAccumulationScheduler({0: 2})] if mistake == "accumulates-by-epoch" else []
    trainer = lightning.Trainer(max_epochs=1, callbacks=callbacks, logger=False)
    trainer.fit(Linear(), DataLoader(TensorDataset(torch.ones(8, 8)), batch_size=2))
