"""A Llama of 1.1 billion weights under Hugging Face's Trainer, made on the CPU as most scripts do."""

from __future__ import annotations

import tempfile

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

LENGTH = 2048


class Zeros(Dataset[dict[str, torch.Tensor]]):
    """Sequences of one token."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, _: int) -> dict[str, torch.Tensor]:
        tokens = torch.zeros(LENGTH, dtype=torch.long)
        return {"input_ids": tokens, "labels": tokens}


shape = LlamaConfig(
    vocab_size=32000,
    hidden_size=2048,
    intermediate_size=5632,
    num_hidden_layers=22,
    num_attention_heads=32,
    num_key_value_heads=4,
    max_position_embeddings=LENGTH,
)
arguments = TrainingArguments(output_dir=tempfile.mkdtemp(), report_to="none", save_strategy="no")
Trainer(model=LlamaForCausalLM(shape), args=arguments, train_dataset=Zeros()).train()
