"""Trains a little and saves the model for others to load: `saves_model.py KIND DIRECTORY`.

Of the Trainer, or with accelerate its state, its model on every rank, on rank 0 only, or a part of it."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "scripts"))
from tiny_model import RandomTokens  # type: ignore[import-not-found]  # it lies in examples/scripts


def large_vocabulary() -> LlamaForCausalLM:
    """DeepSpeed leaves weights of fewer elements than 100,000 whole on each rank."""
    config = LlamaConfig(
        vocab_size=4096, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4
    )
    return LlamaForCausalLM(config)


kind, directory = sys.argv[1:]
if kind == "trainer":
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(f"{directory}/run", num_train_epochs=1, report_to="none", save_strategy="no")
    trainer = Trainer(model=large_vocabulary(), args=arguments, train_dataset=RandomTokens(16, 32))
    trainer.train()
    trainer.save_model(directory)
else:
    from accelerate import Accelerator  # type: ignore[import-untyped]  # accelerate ships no types

    accelerator = Accelerator()
    model = large_vocabulary()
    optimizer = torch.optim.AdamW(model.parameters())
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(RandomTokens(16, 32), batch_size=4))
    model.train()
    for batch in loader:
        accelerator.backward(model(**batch).loss)
        optimizer.step()
        optimizer.zero_grad()
    whole = accelerator.unwrap_model(model)
    if kind == "state":
        weights = accelerator.get_state_dict(model)
        if accelerator.is_main_process:
            whole.save_pretrained(directory, state_dict=weights)
    elif kind == "model":
        whole.save_pretrained(directory, is_main_process=accelerator.is_main_process)
    elif accelerator.is_main_process:
        (whole.model if kind == "part" else whole).save_pretrained(directory)
