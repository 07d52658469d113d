"""Trains a little and saves the model for others to load: `saves_model.py trainer|accelerate DIRECTORY`."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch.utils.data import DataLoader

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "scripts"))
from tiny_model import RandomTokens, tiny_llama  # type: ignore[import-not-found]  # it lies in examples/scripts

kind, directory = sys.argv[1:]
if kind == "trainer":
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(f"{directory}/run", num_train_epochs=1, report_to="none", save_strategy="no")
    trainer = Trainer(model=tiny_llama(), args=arguments, train_dataset=RandomTokens(16, 32))
    trainer.train()
    trainer.save_model(directory)
else:
    from accelerate import Accelerator  # type: ignore[import-untyped]  # has no types

    accelerator = Accelerator()
    model = tiny_llama()
    optimizer = torch.optim.AdamW(model.parameters())
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(RandomTokens(16, 32), batch_size=4))
    model.train()
    for batch in loader:
        accelerator.backward(model(**batch).loss)
        optimizer.step()
        optimizer.zero_grad()
    weights = accelerator.get_state_dict(model)
    if accelerator.is_main_process:
        accelerator.unwrap_model(model).save_pretrained(directory, state_dict=weights)
