"""Classifies noisy digits with Lightning's Trainer: a module, a data module, callbacks and a test at the end.

python digits_lightning.py --output DIRECTORY
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

Batch = tuple[torch.Tensor, torch.Tensor]


class Digits(lightning.LightningDataModule):
    """48 digits to train on, 16 to validate and 16 to test, each of 64 tokens."""

    def __init__(self, batch_size: int, evaluation_batch_size: int) -> None:
        super().__init__()
        self.batch_size, self.evaluation_batch_size = batch_size, evaluation_batch_size

    def setup(self, stage: str) -> None:
        generator = torch.Generator().manual_seed(3)
        classes = torch.randint(10, (80,), generator=generator)
        pixels = classes[:, None, None] / 10 + 0.3 * torch.randn(80, 64, 32, generator=generator)
        parts = zip(pixels.split((48, 16, 16)), classes.split((48, 16, 16)), strict=True)
        self.parts: list[Any] = [TensorDataset(*part) for part in parts]

    def train_dataloader(self) -> DataLoader[Batch]:
        return DataLoader(self.parts[0], batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self) -> DataLoader[Batch]:
        return DataLoader(self.parts[1], batch_size=self.evaluation_batch_size)

    def test_dataloader(self) -> DataLoader[Batch]:
        return DataLoader(self.parts[2], batch_size=self.evaluation_batch_size)


class Classifier(lightning.LightningModule):
    """An encoder over the tokens, beside vectors that it does not learn. Its checkpoints have copies of both."""

    def __init__(self, width: int, known: int, rate: float) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.known: torch.Tensor
        self.register_buffer("known", torch.zeros(known, 32))
        layer = nn.TransformerEncoderLayer(32, 2, width, 0.0, functional.silu, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 10)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.encoder(pixels).mean(1) + self.known[0])
        return logits

    def training_step(self, batch: Batch, _: int) -> torch.Tensor:
        loss = functional.cross_entropy(self(batch[0]), batch[1])
        self.log("loss", loss, on_step=True)
        return loss

    def validation_step(self, batch: Batch, _: int) -> None:
        logits = self(batch[0])
        self.log("val_loss", functional.cross_entropy(logits, batch[1]), prog_bar=True)

    def test_step(self, batch: Batch) -> None:
        self.log("right", (self(batch[0]).argmax(1) == batch[1]).float().mean())

    def on_validation_end(self) -> None:
        if not self.trainer.sanity_checking:
            print(f"step {self.global_step} loss {self.trainer.callback_metrics['val_loss']:.5f}")

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["copy"] = {name: each.clone() for name, each in self.state_dict().items()}

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams["rate"])
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, self.hparams["rate"], total_steps=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


parser = argparse.ArgumentParser()
parser.add_argument("--output", type=Path, required=True)
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--evaluation-batch-size", type=int, default=16)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--width", type=int, default=1280)
parser.add_argument("--known", type=int, default=8)
options = parser.parse_args()
lightning.seed_everything(7)
trainer = lightning.Trainer(
    max_epochs=options.epochs,
    precision="32-true",
    gradient_clip_val=1.0,
    log_every_n_steps=1,
    default_root_dir=options.output,
    logger=CSVLogger(options.output),
    callbacks=[
        ModelCheckpoint(options.output / "best", monitor="val_loss"),
        ModelCheckpoint(options.output / "latest", every_n_train_steps=2),
        LearningRateMonitor("step"),
    ],
)
data = Digits(options.batch_size, options.evaluation_batch_size)
trainer.fit(Classifier(options.width, options.known, 3e-3), data)
print(f"trained {trainer.global_step} steps, best {trainer.checkpoint_callback.best_model_score:.4f}")  # type: ignore[union-attr]  # it was passed
trainer.test(ckpt_path="best", datamodule=data)
