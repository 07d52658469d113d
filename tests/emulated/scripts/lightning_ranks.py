"""Lightning's Trainer on eight GPUs; the argument is its strategy."""

import sys
from typing import Any

import torch
from lightning import pytorch
from torch.utils.data import DataLoader, TensorDataset


class Model(pytorch.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4096, 4096)

    def training_step(self, batch: Any, _: int) -> Any:
        return self.layer(*batch).mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters())


if __name__ == "__main__":
    trainer = pytorch.Trainer(
        accelerator="gpu", devices=8, strategy=sys.argv[1], max_steps=2, logger=False, enable_checkpointing=False
    )
    trainer.fit(Model(), DataLoader(TensorDataset(torch.ones(64, 4096)), batch_size=4))
    print("steps", trainer.global_step, "of ranks", trainer.world_size)
