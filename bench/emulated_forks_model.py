"""The Llama of 1.1 billion weights of `emulated_forks.py`, as both its job and its script need it."""

from typing import Any

LENGTH = 2048
HF_CONFIG: dict[str, Any] = {
    "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22, "num_attention_heads": 32,
    "num_key_value_heads": 4, "max_position_embeddings": LENGTH, "vocab_size": 32000,
}  # fmt: skip
