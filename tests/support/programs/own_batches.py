"""A training of two steps on batches that the script makes by itself, of two rows, and its checkpoint.

The arguments name the library and the directory to save in.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3] / "examples" / "scripts"))

import torch
from tiny_model import RandomTokens, tiny_llama  # type: ignore[import-not-found]  # it lies in examples/scripts
from torch.utils.data import DataLoader, default_collate


class Pairs:
    """A batch sampler of the script's own, of which no library changes the size."""

    def __iter__(self) -> Any:
        return iter([[row, row + 1] for row in range(0, 32, 2)])

    def __len__(self) -> int:
        return 16


def loader() -> Any:
    return DataLoader(RandomTokens(32, 32), batch_sampler=Pairs())


def train_with_trainer(saves: str) -> None:
    from transformers import Trainer, TrainingArguments

    class OwnBatches(Trainer):
        def get_train_dataloader(self) -> Any:
            return loader()

    arguments = TrainingArguments(output_dir=saves, max_steps=2, save_steps=2, report_to="none", disable_tqdm=True)
    OwnBatches(tiny_llama(), arguments, default_collate, RandomTokens(32, 32)).train()


def train_with_accelerate(saves: str) -> None:
    from accelerate import Accelerator  # type: ignore[import-untyped]  # it has no types

    accelerator, model = Accelerator(gradient_accumulation_steps=1), tiny_llama()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer, batches = accelerator.prepare(model, optimizer, loader())
    steps = 0
    for batch in batches:
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch).loss)
            optimizer.step()
            optimizer.zero_grad()
        steps += accelerator.sync_gradients
        if steps == 2:
            break
    accelerator.save_state(f"{saves}/step-2")


def train_with_lightning(saves: str) -> None:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = tiny_llama()

        def training_step(self, batch: Any, _: int) -> Any:
            return self.model(**batch).loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    trainer = lightning.Trainer(max_steps=2, logger=False, enable_progress_bar=False, enable_checkpointing=False)
    trainer.fit(Module(), loader())
    trainer.save_checkpoint(f"{saves}/own.ckpt")


def train_with_fabric(saves: str) -> None:
    from lightning.fabric import Fabric

    fabric = Fabric()
    model = fabric.setup(tiny_llama())
    optimizer: Any = fabric.setup_optimizers(torch.optim.AdamW(model.parameters(), lr=1e-3))
    for _, batch in zip(range(2), fabric.setup_dataloaders(loader()), strict=False):
        fabric.backward(model(**batch).loss)
        optimizer.step()
        optimizer.zero_grad()
    fabric.save(f"{saves}/own.ckpt", {"model": model, "optimizer": optimizer})


globals()[f"train_with_{sys.argv[1]}"](sys.argv[2])
