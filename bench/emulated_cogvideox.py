"""CogVideoX as cogvideox-factory trains it: diffusers' transformer on latents of 49 frames of 480x720.

Run by `memtune emulate`, with a Python that has diffusers. It reads nothing from disk: weights are empty, and the
latents and text embeddings, which the original had computed before, are zeros.
"""

from __future__ import annotations

import argparse
import gc
from typing import Any

import torch
from accelerate import Accelerator  # type: ignore[import-untyped]
from diffusers import (  # type: ignore[import-not-found]
    AutoencoderKLCogVideoX,
    CogVideoXDPMScheduler,
    CogVideoXTransformer3DModel,
)
from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution  # type: ignore[import-not-found]
from diffusers.models.embeddings import get_3d_rotary_pos_embed  # type: ignore[import-not-found]
from diffusers.training_utils import cast_training_params  # type: ignore[import-not-found]
from transformers import T5Config, T5EncoderModel

_FRAMES, _CHANNELS, _HEIGHT, _WIDTH, _TOKENS = 13, 16, 60, 90, 226
_CONFIGS: dict[str, dict[str, Any]] = {
    "2b": {"num_attention_heads": 30, "num_layers": 30},
    "5b": {"num_attention_heads": 48, "num_layers": 42, "use_rotary_positional_embeddings": True},
}
_TEXT_ENCODER = T5Config(
    vocab_size=32_128, d_model=4096, d_kv=64, d_ff=10_240, num_layers=24, num_heads=64, feed_forward_proj="gated-gelu"
)


class Videos(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Precomputed inputs: means and variances of latents, and text embeddings."""

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, _: int) -> dict[str, torch.Tensor]:
        moments = torch.zeros(2 * _CHANNELS, _FRAMES, _HEIGHT, _WIDTH, dtype=torch.float16)
        return {"videos": moments, "prompts": torch.zeros(_TOKENS, 4096, dtype=torch.float16)}


def placed(model: torch.nn.Module, device: torch.device) -> torch.nn.Module:
    """A model of the device meta on the GPU, with the allocations of one that was loaded on the CPU."""
    return model.to(torch.float16).to_empty(device=device)


def optimizer_of(options: argparse.Namespace, weights: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """The original script's choice."""
    settings: dict[str, Any] = {"lr": 1e-4, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 1e-3}
    if options.optimizer == "offloaded":
        from torchao.prototype.low_bit_optim import CPUOffloadOptimizer  # type: ignore[import-not-found]

        return CPUOffloadOptimizer(weights, torch.optim.AdamW, offload_gradients=True, fused=True, **settings)  # type: ignore[no-any-return]
    if options.optimizer == "adamw-8bit":
        import bitsandbytes

        return bitsandbytes.optim.AdamW8bit(weights, **settings)  # type: ignore[no-any-return]
    return torch.optim.AdamW(weights, **settings)


def rotary(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """The larger model's positions."""
    cosine, sine = get_3d_rotary_pos_embed(
        embed_dim=64, crops_coords=((0, 0), (_HEIGHT // 2, _WIDTH // 2)), grid_size=(_HEIGHT // 2, _WIDTH // 2),
        temporal_size=_FRAMES,
    )  # fmt: skip
    return cosine.to(device), sine.to(device)


def norm(weights: Any) -> float:
    """The original's norm of all gradients, one after the other."""
    return float(sum(each.grad.detach().data.norm(2).item() ** 2 for each in weights if each.grad is not None) ** 0.5)


def main() -> None:
    """Two steps of LoRA, one of all weights."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=_CONFIGS)
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--lora", type=int, default=0)
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--optimizer", choices=["adamw", "adamw-8bit", "offloaded"], default="adamw")
    options = parser.parse_args()
    accelerator = Accelerator(mixed_precision="fp16")
    device = accelerator.device
    with torch.device("meta"):
        text_encoder: Any = T5EncoderModel(_TEXT_ENCODER)
        model: Any = CogVideoXTransformer3DModel(**_CONFIGS[options.model])
        vae: Any = AutoencoderKLCogVideoX()
    # In this order, for what of their small tensors shares a segment stays reserved.
    text_encoder, model, vae = (placed(each, device) for each in (text_encoder, model, vae))
    if options.lora:
        from peft import LoraConfig

        model.requires_grad_(False)
        targets = ["to_k", "to_q", "to_v", "to_out.0"]
        model.add_adapter(LoraConfig(r=options.lora, lora_alpha=64, init_lora_weights=True, target_modules=targets))
    if options.checkpointing:
        model.enable_gradient_checkpointing()
    cast_training_params([model], dtype=torch.float32)
    weights = [each for each in model.parameters() if each.requires_grad]
    # With all weights no forward pass of the source can have run beside the optimizer's states: with 4 rows its peak is
    # the same with states in 8 bits and with none on the GPU.
    steps = 2 if options.lora else 1
    loader = torch.utils.data.DataLoader(Videos(options.rows * steps), options.rows)
    model, optimizer, loader = accelerator.prepare(model, optimizer_of(options, weights), loader)
    scheduler: Any = CogVideoXDPMScheduler()
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    del text_encoder, vae
    gc.collect()
    torch.cuda.empty_cache()
    alphas = scheduler.alphas_cumprod.to(device, dtype=torch.float32)
    model.train()
    for batch in loader:
        latents = DiagonalGaussianDistribution(batch["videos"]).sample() * 1.15
        # The script for LoRA trained on latents in fp32.
        latents = latents.permute(0, 2, 1, 3, 4).to(
            memory_format=torch.contiguous_format, dtype=torch.float32 if options.lora else torch.float16
        )
        noise = torch.randn_like(latents)
        times = torch.zeros(options.rows, dtype=torch.int64, device=device)
        positions = rotary(device) if options.model == "5b" else None
        noisy = scheduler.add_noise(latents, noise, times)
        output = model(
            hidden_states=noisy, encoder_hidden_states=batch["prompts"], timestep=times, image_rotary_emb=positions,
            return_dict=False,
        )[0]  # fmt: skip
        found = scheduler.get_velocity(output, noisy, times)
        scales = (1 / (1 - alphas[times])).view(-1, 1, 1, 1, 1)
        loss = torch.mean((scales * (found - latents) ** 2).reshape(options.rows, -1), dim=1).mean()
        accelerator.backward(loss)
        if options.optimizer != "offloaded":
            norm(model.parameters())
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            norm(model.parameters())
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
