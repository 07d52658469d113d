"""Trains with the 8-bit AdamW and the quantized layers of the library that is named, and says what they hold in MiB."""

from __future__ import annotations

import sys

import torch
from torch import nn


def held() -> float:
    return torch.cuda.memory_allocated() / 2**20


def layers() -> nn.Module:
    """8 Mi weights of 2 bytes."""
    return (
        nn.Sequential(nn.Linear(1024, 4096, bias=False), nn.GELU(), nn.Linear(4096, 1024, bias=False)).cuda().bfloat16()
    )


def tokens(width: int = 1024) -> torch.Tensor:
    return torch.randn(16, width, device="cuda", dtype=torch.bfloat16, requires_grad=True)


def moments(optimizer: torch.optim.Optimizer, model: nn.Module) -> float:
    """What the first step adds."""
    model(tokens()).float().pow(2).mean().backward()
    before = held()
    optimizer.step()
    return held() - before


def bitsandbytes() -> None:
    """Both optimizers, of which one has moments that may leave the GPU, and layers of 4 and 8 bits."""
    import bitsandbytes as library

    for kind in (library.optim.AdamW8bit, library.optim.PagedAdamW8bit):
        model = layers()
        print(kind.__name__, moments(kind(model.parameters()), model))
    for kind, options in (
        (library.nn.Linear4bit, {"compute_dtype": torch.bfloat16, "quant_type": "nf4"}),
        (library.nn.Linear8bitLt, {"has_fp16_weights": False}),
    ):
        before = held()
        layer = kind(4096, 4096, bias=False, **options).cuda()
        print(kind.__name__, held() - before)
        layer(tokens(4096).half()).sum().backward()


def torchao() -> None:
    """An optimizer that compiles its step, weights of 8 bits, and matrix products in fp8."""
    from torchao.float8 import convert_to_float8_training  # type: ignore[import-not-found]  # it lies apart
    from torchao.optim import AdamW8bit  # type: ignore[import-not-found]  # it lies apart
    from torchao.quantization import Int8WeightOnlyConfig, quantize_  # type: ignore[import-not-found]  # it lies apart

    model = layers()
    print("AdamW8bit", moments(AdamW8bit(model.parameters()), model))
    before = held()
    quantized = layers()
    quantize_(quantized, Int8WeightOnlyConfig())
    print("Int8WeightOnlyConfig", held() - before)
    quantized(tokens())
    convert_to_float8_training(model := layers())
    model(tokens()).sum().backward()


if __name__ == "__main__":
    {"bitsandbytes": bitsandbytes, "torchao": torchao}[sys.argv[1]]()
