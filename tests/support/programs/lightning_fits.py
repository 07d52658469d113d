"""Trainings with Lightning that are more than one call of fit. The argument says which.

``SAVES_IN`` is where the script's own callbacks save; with ``FAILS`` in the environment the last fit fails at its end.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import Callback, LearningRateFinder, ModelCheckpoint
from lightning.pytorch.tuner.tuning import Tuner
from torch.utils.data import DataLoader, TensorDataset

kind = sys.argv[1]
FINDING: dict[str, Any] = {"early_stop_threshold": None}


class Linear(lightning.LightningModule):
    """The smallest module that has a learning rate to find."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.lr = 1e-3
        self.batches = 0

    def training_step(self, batch: list[torch.Tensor], _: int) -> Any:
        self.batches += 1
        return self.layer(batch[0]).pow(2).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.lr)


class StopEarly(Callback):
    """Stands for early stopping."""

    def on_train_batch_end(self, trainer: lightning.Trainer, *_: Any) -> None:
        trainer.should_stop |= trainer.global_step == 4


def train_epochs(*callbacks: Callback) -> None:
    """Two passes over 21 samples."""
    data = DataLoader(TensorDataset(torch.randn(21, 4)), batch_size=4, shuffle=True)
    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
    lightning.Trainer(max_epochs=2, accumulate_grad_batches=5, callbacks=list(callbacks), **quiet).fit(Linear(), data)


def fit(name: str, *callbacks: Any) -> None:
    saving = ModelCheckpoint(Path(os.environ["SAVES_IN"]) / name, every_n_train_steps=2)
    trainer = lightning.Trainer(
        max_steps=4, callbacks=[*callbacks, saving], logger=False, enable_progress_bar=False, enable_model_summary=False
    )
    model = Linear()
    data = DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=2, shuffle=True)
    if kind == "tuner":
        Tuner(trainer).lr_find(model, data, num_training=20, **FINDING)
        model.batches = 0
    trainer.fit(model, data)
    trainer.save_checkpoint(Path(os.environ["SAVES_IN"]) / f"{name}.ckpt")
    print(f"{name}: {model.batches} batches to step {trainer.global_step}", flush=True)


if kind == "folds":
    fit("first")
    fit("second")
elif kind in ("epochs", "early"):
    train_epochs(*([StopEarly()] if kind == "early" else []))
else:
    fit("first", *([LearningRateFinder(num_training_steps=20, **FINDING)] if kind == "finder" else []))
if "FAILS" in os.environ:
    raise RuntimeError("it fails behind its last step")
