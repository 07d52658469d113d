"""Hugging Face's Trainer, with DeepSpeed's libraries for disks as they are where they were built into the image."""

import os
import tempfile

import torch
from deepspeed import git_version_info  # type: ignore[import-untyped]  # it has no types
from deepspeed.ops import aio, pin_memory  # type: ignore[import-untyped]  # the same
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

for package in (aio, pin_memory):
    package.__path__.append(os.environ["DEEPSPEED_LIBRARIES"])
git_version_info.installed_ops.update(async_io=True, pin_memory=True)
git_version_info.accelerator_name = "cuda"
assert torch.version.cuda is not None
git_version_info.torch_info.update(
    version=".".join(torch.__version__.split(".")[:2]), cuda_version=".".join(torch.version.cuda.split(".")[:2])
)


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
