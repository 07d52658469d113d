"""transformers' Trainer on a small Llama; the argument is a stage of ZeRO. Without, it also saves and generates."""

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


class Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, place: int) -> dict[str, torch.Tensor]:
        tokens = torch.arange(256)
        return {"input_ids": tokens, "labels": tokens, "attention_mask": torch.ones_like(tokens)}


stage = int(sys.argv[1]) if sys.argv[1:] else None
zero = stage and {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": stage},
}
model: Any = LlamaForCausalLM(LlamaConfig(vocab_size=4096, hidden_size=512, intermediate_size=1536, num_hidden_layers=4,
                                          num_attention_heads=8, num_key_value_heads=8))  # fmt: skip
with tempfile.TemporaryDirectory() as directory:
    arguments = TrainingArguments(
        directory, per_device_train_batch_size=2, max_steps=3, bf16=True, logging_steps=1, report_to=[],
        deepspeed=zero or None, save_steps=3, eval_steps=2,
        save_strategy="no" if stage else "steps", eval_strategy="no" if stage else "steps",
    )  # fmt: skip
    few = torch.utils.data.Subset(Rows(), range(16))
    Trainer(model, arguments, train_dataset=Rows(), eval_dataset=few).train()
    print("saved", [each.stat().st_size // model.num_parameters() for each in Path(directory).glob("*/*.safetensors")])
if stage is None:
    print("generated", tuple(model.generate(torch.arange(8, device="cuda")[None], max_new_tokens=5).shape))
