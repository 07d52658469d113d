"""Small models of all kinds, whose memory can be counted on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from memtune_runner.tracing.factory import Subject

VOCABULARY, LENGTH = 512, 64
_TEXT = {"vocab_size": VOCABULARY, "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4}
_ROTARY = {**_TEXT, "intermediate_size": 160, "max_position_embeddings": LENGTH, "use_cache": False}
_IMAGE = {"image_size": 32, "num_labels": 10}


def _configured(task: str, batch: Callable[[int], dict[str, torch.Tensor]]) -> Callable[..., Callable[[], Subject]]:
    """Models of transformers for a task, from their configs."""

    def described(model_type: str, **facts: Any) -> Callable[[], Subject]:
        def make() -> Subject:
            import transformers

            kind: Any = getattr(transformers, f"AutoModelFor{task}")
            config = transformers.AutoConfig.for_model(model_type, **facts)
            return Subject(kind.from_config(config), batch, _own_loss)

        return make

    return described


def _adapted() -> Subject:
    from peft import LoraConfig, get_peft_model

    model, batch, loss = _causal("llama", **_ROTARY, num_key_value_heads=2)()
    return Subject(get_peft_model(model, LoraConfig(r=8, target_modules=["q_proj", "v_proj"])), batch, loss)


def _with_loss_around() -> Subject:
    model, batch, _ = _causal("llama", **_ROTARY, num_key_value_heads=2)()
    return Subject(model, batch, _loss_around)


class UNet(nn.Module):
    """A U-Net: features of one resolution are kept for the upward path."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        sizes = [3, width, 2 * width, 4 * width]
        self.down = nn.ModuleList(_convolution(a, b) for a, b in pairwise(sizes))
        self.up = nn.ModuleList(_convolution(a + b, b) for a, b in ((4 * width, 2 * width), (2 * width, width)))
        self.last = nn.Conv2d(width, 3, 1)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        seen = []
        for number, layer in enumerate(self.down):
            pixels = layer(functional.max_pool2d(pixels, 2) if number else pixels)
            seen.append(pixels)
        for layer, before in zip(self.up, (seen[1], seen[0]), strict=True):
            pixels = layer(torch.cat([functional.interpolate(pixels, scale_factor=2), before], 1))
        return functional.mse_loss(self.last(pixels), torch.zeros_like(self.last(pixels)))


class Convolutional(nn.Module):
    """A plain stack of convolutions with batch norm."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.layers = nn.Sequential(*[_convolution(width, width) for _ in range(4)])
        self.head = nn.Linear(width, 10)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.layers(self.stem(pixels)).mean((2, 3)))
        return functional.cross_entropy(logits, torch.zeros(len(pixels), dtype=torch.long))


class Perceptron(nn.Module):
    """A plain stack of linear layers."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
                                    for _ in range(6))  # fmt: skip

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            hidden = hidden + layer(hidden)
        return hidden.square().mean()


def _convolution(before: int, after: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.SiLU())


def _tokens(rows: int) -> dict[str, torch.Tensor]:
    return {name: torch.ones(rows, LENGTH, dtype=torch.long) for name in ("input_ids", "labels")}


def _pictures(rows: int) -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.zeros(rows, 3, 32, 32), "labels": torch.zeros(rows, dtype=torch.long)}


def _own_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    loss: torch.Tensor = model(**batch).loss
    return loss


def _loss_around(model: nn.Module, batch: Any) -> torch.Tensor:
    logits = model(input_ids=batch["input_ids"]).logits.float()
    return functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())


def _of(model: Callable[[], nn.Module], batch: Callable[[int], torch.Tensor]) -> Callable[[], Subject]:
    return lambda: Subject(model(), batch, lambda built, inputs: built(inputs))


_causal, _masked = _configured("CausalLM", _tokens), _configured("MaskedLM", _tokens)
_translating, _seeing = _configured("Seq2SeqLM", _tokens), _configured("ImageClassification", _pictures)
_BART = {"vocab_size": VOCABULARY, "d_model": 64, "encoder_layers": 3, "decoder_layers": 3, "encoder_ffn_dim": 128,
         "decoder_ffn_dim": 128, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
         "max_position_embeddings": LENGTH}  # fmt: skip

MODELS: dict[str, Callable[[], Subject]] = {
    "llama": _causal("llama", **_ROTARY, num_key_value_heads=2),
    "mistral": _causal("mistral", **_ROTARY, num_key_value_heads=2),
    "qwen2": _causal("qwen2", **_ROTARY, num_key_value_heads=2),
    "qwen3": _causal("qwen3", **_ROTARY, num_key_value_heads=2, head_dim=16),
    "gemma2": _causal("gemma2", **_ROTARY, num_key_value_heads=2, head_dim=16),
    "phi": _causal("phi", **_ROTARY),
    "gpt2": _causal("gpt2", vocab_size=VOCABULARY, n_embd=64, n_layer=4, n_head=4, n_positions=LENGTH,
                    use_cache=False),
    "gpt-neox": _causal("gpt_neox", **_ROTARY),
    "opt": _causal("opt", **_TEXT, ffn_dim=128, word_embed_proj_dim=64, max_position_embeddings=LENGTH,
                   use_cache=False),
    "bloom": _causal("bloom", vocab_size=VOCABULARY, hidden_size=64, n_layer=4, n_head=4, use_cache=False),
    "mixtral": _causal("mixtral", **_ROTARY, num_key_value_heads=2, num_local_experts=4),
    "llama-lora": _adapted,
    "bert": _masked("bert", **_TEXT, intermediate_size=128, max_position_embeddings=LENGTH),
    "roberta": _masked("roberta", **_TEXT, intermediate_size=128, max_position_embeddings=LENGTH + 2),
    "t5": _translating("t5", vocab_size=VOCABULARY, d_model=64, d_kv=16, d_ff=128, num_layers=3, num_heads=4,
                       decoder_start_token_id=0, use_cache=False),
    "bart": _translating("bart", **_BART, use_cache=False),
    "vit": _seeing("vit", **_IMAGE, patch_size=8, hidden_size=64, num_hidden_layers=4, num_attention_heads=4,
                   intermediate_size=128),
    "convnext": _seeing("convnext", **_IMAGE, hidden_sizes=[16, 32, 64, 128], depths=[2, 2, 2, 2]),
    "u-net": _of(UNet, lambda rows: torch.zeros(rows, 3, 64, 64)),
    "convolutions": _of(Convolutional, lambda rows: torch.zeros(rows, 3, 32, 32)),
    "perceptron": _of(Perceptron, lambda rows: torch.zeros(rows, 32, 128)),
    "llama-loss-around": _with_loss_around,
}  # fmt: skip
BATCH_NORMALIZED = frozenset({"u-net", "convolutions"})
