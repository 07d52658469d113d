"""A training with Lightning's Trainer that saves after every second step.

``SAVES_IN`` is where the script's own callback saves; from step ``HEAVY_FROM`` on each row of a batch takes 400 MiB.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3] / "examples" / "scripts"))

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from tiny_model import RandomTokens, tiny_llama  # type: ignore[import-not-found]  # it lies in examples/scripts
from torch.utils.data import DataLoader

HEAVY_ROW_BYTES = 400 * 2**20


class TinyLlama(lightning.LightningModule):
    """Prints the mean loss of each step's micro-batches, in full, over all ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.model = tiny_llama()
        self.losses: list[torch.Tensor] = []

    def training_step(self, batch: dict[str, torch.Tensor], _: int) -> Any:
        if self.trainer.global_step >= int(os.environ.get("HEAVY_FROM", "99")):
            torch.empty(len(batch["input_ids"]), HEAVY_ROW_BYTES, dtype=torch.uint8)
        loss = self.model(**batch).loss
        self.losses.append(loss.detach())
        return loss

    def on_before_optimizer_step(self, _: torch.optim.Optimizer) -> None:
        if len(self.losses) < self.trainer.accumulate_grad_batches:
            return  # DeepSpeed has it called for each batch
        lost = self.trainer.strategy.reduce(torch.stack(self.losses).mean(), reduce_op="mean")
        steps, rate = self.trainer.estimated_stepping_batches, self.trainer.optimizers[0].param_groups[0]["lr"]
        print(f"step {self.trainer.global_step + 1} of {steps} loss {lost:.7f} lr {rate:.6e}")
        self.losses.clear()

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        steps = int(self.trainer.estimated_stepping_batches)
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


checkpoints = ModelCheckpoint(os.environ["SAVES_IN"], filename="{step}", every_n_train_steps=2, save_last=True)
trainer = lightning.Trainer(
    accelerator="gpu",
    devices="auto",
    max_epochs=2,
    callbacks=[checkpoints],
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(TinyLlama(), DataLoader(RandomTokens(40, 32), batch_size=6, shuffle=True), ckpt_path="last")
