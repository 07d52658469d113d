"""Trains a Llama of transformers that Liger has patched, and says how many MiB a step takes beside what stays."""

from __future__ import annotations

from typing import Any

import torch
from liger_kernel.transformers import apply_liger_kernel_to_llama  # type: ignore[import-not-found]  # it lies apart
from transformers.models.llama import LlamaConfig, LlamaForCausalLM

apply_liger_kernel_to_llama()
config = LlamaConfig(
    hidden_size=256, intermediate_size=1024, num_hidden_layers=2, num_attention_heads=4, vocab_size=32_000
)
model: Any = LlamaForCausalLM(config)
model.cuda().bfloat16()
optimizer = torch.optim.AdamW(model.parameters())
tokens = torch.zeros((4, 1024), dtype=torch.int64, device="cuda")
for _ in range(2):
    before = torch.cuda.memory_allocated()
    loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(type(model.model.norm).__name__, bool(loss.isfinite()), (torch.cuda.max_memory_allocated() - before) // 2**20)
