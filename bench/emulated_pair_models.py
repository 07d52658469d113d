"""Builds the models of bench/emulated_pair_list.py on a device, without values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from emulated_pair_list import MODELS, PICTURE, UNET_WIDTH, Model
from torch import nn
from truth_models import UNet

Batch = Callable[[int], Any]


def unet(sequence_length: int) -> tuple[nn.Module, Batch, Callable[[Any, Any], torch.Tensor]]:
    """The U-Net, as a job's factory would return it."""
    del sequence_length
    return UNet(UNET_WIDTH), lambda rows: torch.zeros(rows, 3, PICTURE, PICTURE), lambda model, pixels: model(pixels)


def build(name: str, device: torch.device) -> tuple[nn.Module, Batch, Callable[[Any, Any], torch.Tensor]]:
    """A model on a device, a function for its micro-batches, and its loss."""
    described = MODELS[name]
    if not described.config:
        with device:
            model, _, loss = unet(0)
        return model, lambda rows: torch.zeros(rows, 3, PICTURE, PICTURE, device=device), loss
    model = _adapted(described, _configured(described, device), device)
    model.train()
    inputs = (_pictures if described.task == "ImageClassification" else _tokens)(described, device)
    return model, inputs, lambda built, batch: built(**batch).loss


def _configured(described: Model, device: torch.device) -> nn.Module:
    import transformers

    facts = {key: value for key, value in described.config.items() if key not in ("model_type", "architecture")}
    config = transformers.AutoConfig.for_model(described.config["model_type"], use_cache=False, **facts)
    kind: Any = getattr(transformers, f"AutoModelFor{described.task}")
    quantized = described.adapter is not None and described.adapter.base_quantization != "none"
    # A quantized one is filled weight by weight, below.
    with torch.device("meta") if quantized else device:
        return kind.from_config(config)  # type: ignore[no-any-return]


def _adapted(described: Model, model: nn.Module, device: torch.device) -> nn.Module:
    adapter = described.adapter
    if adapter is None:
        return model
    from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training

    if adapter.base_quantization != "none":
        _quantize(model, device)
        prepare: Any = prepare_model_for_kbit_training
        model = prepare(model, use_gradient_checkpointing=False)
    targets: Any = "all-linear" if "all-linear" in adapter.targets else list(adapter.targets)
    config = LoraConfig(r=adapter.rank, lora_alpha=16, lora_dropout=adapter.dropout, target_modules=targets)
    with device:
        return get_peft_model(model, config)


def _quantize(model: nn.Module, device: torch.device) -> None:
    """Load weights in nf4 as transformers does: every module except the head, one after the other."""
    import bitsandbytes  # an optional package

    for name, module in list(model.named_modules()):
        for part, child in list(module.named_children()):
            if isinstance(child, nn.Linear) and part != "lm_head":
                product = bitsandbytes.nn.Linear4bit(
                    child.in_features, child.out_features, child.bias is not None, compute_dtype=torch.bfloat16,
                    compress_statistics=False, quant_type="nf4", device="meta",
                )  # fmt: skip
                weight = torch.empty(child.out_features, child.in_features, dtype=torch.bfloat16)
                product.weight = bitsandbytes.nn.Params4bit(
                    weight, requires_grad=False, quant_type="nf4", compress_statistics=False, module=product
                ).to(device)
                setattr(module, part, product)
        del name
    for module in model.modules():
        for kept in (module._parameters, module._buffers):
            for key, tensor in kept.items():
                if tensor is not None and tensor.is_meta:
                    dtype = (
                        torch.bfloat16 if tensor.is_floating_point() and kept is module._parameters else tensor.dtype
                    )
                    there: Any = torch.empty(tensor.shape, dtype=dtype, device=device)
                    kept[key] = nn.Parameter(there, requires_grad=False) if kept is module._parameters else there
    model.is_loaded_in_4bit = True  # type: ignore[assignment]
    model.is_quantized = True  # type: ignore[assignment]


def _tokens(described: Model, device: torch.device) -> Batch:
    def batch(rows: int) -> dict[str, torch.Tensor]:
        names = ("input_ids", "labels")
        return {name: torch.ones(rows, described.length, dtype=torch.long, device=device) for name in names}

    return batch


def _pictures(described: Model, device: torch.device) -> Batch:
    size = described.config["image_size"]

    def batch(rows: int) -> dict[str, torch.Tensor]:
        labels = torch.zeros(rows, dtype=torch.long, device=device)
        return {"pixel_values": torch.zeros(rows, 3, size, size, device=device), "labels": labels}

    return batch
