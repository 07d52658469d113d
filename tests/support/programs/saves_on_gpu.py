"""A training whose saves take more memory than a virtual GPU has: by accelerate, or by the Trainer."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3] / "examples" / "scripts"))

import torch
from accelerate import Accelerator  # type: ignore[import-untyped]  # accelerate ships no types
from tiny_model import RandomTokens, tiny_llama  # type: ignore[import-not-found]  # it lies in examples/scripts
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments

integration, directory = sys.argv[1:]


def gather(*_: Any) -> None:
    torch.empty(1 << 31, dtype=torch.uint8)


class Gathering(Trainer):
    """Gathers what it saves."""

    def save_model(self, *args: Any, **kwargs: Any) -> None:
        """Save as the Trainer does."""
        gather()
        super().save_model(*args, **kwargs)


if integration == "hf-trainer":
    arguments = TrainingArguments(directory, report_to="none")
    Gathering(tiny_llama(), arguments, train_dataset=RandomTokens(64, 32)).train()
else:
    accelerator = Accelerator()
    accelerator.register_save_state_pre_hook(gather)
    model = tiny_llama()
    optimizer = torch.optim.AdamW(model.parameters())
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(RandomTokens(64, 32), batch_size=8))
    model.train()
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch).loss)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            accelerator.save_state(directory)
