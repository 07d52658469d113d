"""Hugging Face's Trainer with DeepSpeed's offload to a disk."""

import tempfile

import disk_libraries  # noqa: F401  # DeepSpeed finds them
import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


class Zeros(Dataset[dict[str, torch.Tensor]]):
    """Sequences of one token."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, _: int) -> dict[str, torch.Tensor]:
        tokens = torch.zeros(256, dtype=torch.long)
        return {"input_ids": tokens, "labels": tokens}


config = LlamaConfig(
    hidden_size=512, intermediate_size=2048, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=8,
    vocab_size=16384,
)  # fmt: skip
arguments = TrainingArguments(output_dir=tempfile.mkdtemp(), report_to="none", save_strategy="no")
Trainer(model=LlamaForCausalLM(config), args=arguments, train_dataset=Zeros()).train()
