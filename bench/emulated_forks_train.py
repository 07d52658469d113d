"""A Llama of 1.1 billion weights under Hugging Face's Trainer, made on the CPU as most scripts do."""

from __future__ import annotations

import tempfile

import torch
from emulated_forks_model import HF_CONFIG, LENGTH
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


class Zeros(Dataset[dict[str, torch.Tensor]]):
    """Sequences of one token."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, _: int) -> dict[str, torch.Tensor]:
        tokens = torch.zeros(LENGTH, dtype=torch.long)
        return {"input_ids": tokens, "labels": tokens}


arguments = TrainingArguments(output_dir=tempfile.mkdtemp(), report_to="none", save_strategy="no")
Trainer(model=LlamaForCausalLM(LlamaConfig(**HF_CONFIG)), args=arguments, train_dataset=Zeros()).train()
