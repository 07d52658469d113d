"""A small language model from a configuration, and tokens to train it on: stands for your own model and data."""

from __future__ import annotations

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

VOCABULARY = 256


def tiny_llama() -> PreTrainedModel:
    """Two layers with random weights."""
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=256,
        )
    )


class RandomTokens(Dataset[dict[str, torch.Tensor]]):
    """Sequences of random tokens that the model is to repeat."""

    def __init__(self, rows: int, length: int) -> None:
        self._tokens = torch.randint(0, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self._tokens[index], "labels": self._tokens[index]}
