"""Eleven described architectures with real widths, but only a few of their identical layers."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any

from torch._subclasses.fake_tensor import FakeTensorMode

from memtune.wire.trace import Trace
from memtune_runner.tracing import trace_subject
from memtune_runner.tracing.factory import build

LENGTH = 512
RANK = 8  # of an adapter
_LLAMA = {"model_type": "llama", "num_attention_heads": 32, "vocab_size": 32000}

CONFIGS: dict[str, dict[str, Any]] = {
    "llama-tiny": {"model_type": "llama", "hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8,
                   "num_key_value_heads": 4, "intermediate_size": 1376, "vocab_size": 8192},
    "tinyllama-1.1b": {**_LLAMA, "hidden_size": 2048, "num_hidden_layers": 6, "num_key_value_heads": 4,
                       "intermediate_size": 5632},
    "llama-7b": {**_LLAMA, "hidden_size": 4096, "num_hidden_layers": 6, "num_key_value_heads": 32,
                 "intermediate_size": 11008},
    "mistral-7b": {"model_type": "mistral", "hidden_size": 4096, "num_hidden_layers": 6, "num_attention_heads": 32,
                   "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 14336, "vocab_size": 32000,
                   "sliding_window": None},
    "qwen2-0.5b": {"model_type": "qwen2", "hidden_size": 896, "num_hidden_layers": 6, "num_attention_heads": 14,
                   "num_key_value_heads": 2, "intermediate_size": 4864, "vocab_size": 151936,
                   "tie_word_embeddings": True},
    "qwen3-0.6b": {"model_type": "qwen3", "hidden_size": 1024, "num_hidden_layers": 6, "num_attention_heads": 16,
                   "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072, "vocab_size": 151936,
                   "tie_word_embeddings": True},
    "gemma-2-2b": {"model_type": "gemma2", "hidden_size": 2304, "num_hidden_layers": 6, "num_attention_heads": 8,
                   "num_key_value_heads": 4, "head_dim": 256, "intermediate_size": 9216, "vocab_size": 256000},
    "gpt2": {"model_type": "gpt2", "vocab_size": 50257, "n_embd": 768, "n_layer": 6, "n_head": 12, "n_positions": 1024},
    "opt-125m": {"model_type": "opt", "vocab_size": 50272, "hidden_size": 768, "num_hidden_layers": 6,
                 "num_attention_heads": 12, "ffn_dim": 3072, "word_embed_proj_dim": 768,
                 "max_position_embeddings": 2048},
    "pythia-160m": {"model_type": "gpt_neox", "vocab_size": 50304, "hidden_size": 768, "num_hidden_layers": 6,
                    "num_attention_heads": 12, "intermediate_size": 3072, "max_position_embeddings": 2048},
    "phi-1.5": {"model_type": "phi", "vocab_size": 51200, "hidden_size": 2048, "num_hidden_layers": 6,
                "num_attention_heads": 32, "intermediate_size": 8192, "max_position_embeddings": 2048},
}  # fmt: skip


def traced(name: str, numerics: Sequence[str], adapted: Sequence[str] = (), dropout: float = 0.0) -> Trace:
    """The traced model of a config in these numerics; with a frozen base if some modules are adapted."""
    from transformers import AutoConfig, AutoModelForCausalLM

    model: Any = AutoModelForCausalLM  # untyped in transformers
    facts = dict(CONFIGS[name])
    config = AutoConfig.for_model(facts.pop("model_type"), **facts, use_cache=False)
    gc.disable()  # as in `memtune trace`: the time of garbage collection must not be random
    try:
        return _traced(name, lambda: _adapter(model.from_config(config), adapted, dropout), numerics)
    finally:
        gc.enable()


def _adapter(model: Any, adapted: Sequence[str], dropout: float) -> Any:
    from peft import LoraConfig, get_peft_model

    adapter = LoraConfig(r=RANK, target_modules=list(adapted), lora_dropout=dropout)
    return get_peft_model(model, adapter) if adapted else model


def _traced(name: str, make: Callable[[], Any], numerics: Sequence[str]) -> Trace:
    with FakeTensorMode(allow_non_fake_inputs=True):
        subject = build(name, make, 2, LENGTH)
        return trace_subject(subject, 2, LENGTH, numerics)
