"""A training with Lightning's Trainer. Integration: lightning; the plan replaces the arguments it decides on."""

from __future__ import annotations

from typing import Any

import lightning
import torch
from tiny_model import RandomTokens, tiny_llama
from torch.utils.data import DataLoader


class TinyLlama(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = tiny_llama()

    def training_step(self, batch: dict[str, torch.Tensor], _: int) -> Any:
        return self.model(**batch).loss

    def validation_step(self, batch: dict[str, torch.Tensor], _: int) -> None:
        self.log("evaluated", self.model(**batch).loss)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


trainer = lightning.Trainer(max_epochs=1, enable_checkpointing=False, enable_progress_bar=False, logger=False)
trainer.fit(
    TinyLlama(),
    DataLoader(RandomTokens(64, 32), batch_size=16, shuffle=True),
    DataLoader(RandomTokens(16, 32), batch_size=8),
)
