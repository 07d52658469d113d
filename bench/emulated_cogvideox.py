"""CogVideoX as cogvideox-factory trains it: diffusers' transformer on latents of 49 frames of 480x720.

Run by `memtune emulate`, with a Python that has diffusers. It reads nothing from disk: the original loads precomputed
latents and text embeddings, which are zeros here.
"""

from __future__ import annotations

import argparse
import gc
from typing import Any

import torch
from accelerate import Accelerator  # type: ignore[import-untyped]
from diffusers import CogVideoXDPMScheduler, CogVideoXTransformer3DModel  # type: ignore[import-not-found]
from diffusers.models.embeddings import get_3d_rotary_pos_embed  # type: ignore[import-not-found]

# The source measured before the first validation, which came after one step: with 4 rows a peak is the same with 8-bit
# states and with none on the GPU.
STEPS = 1
_FRAMES, _CHANNELS, _HEIGHT, _WIDTH, _TOKENS = 13, 16, 60, 90, 226
_CONFIGS: dict[str, dict[str, Any]] = {
    "2b": {"num_attention_heads": 30, "num_layers": 30},
    "5b": {"num_attention_heads": 48, "num_layers": 42, "use_rotary_positional_embeddings": True},
}


def optimizer_of(options: argparse.Namespace, weights: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """The original script's choice."""
    settings: dict[str, Any] = {"lr": 1e-4, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 1e-3}
    if options.optimizer == "offloaded":
        from torchao.prototype.low_bit_optim import CPUOffloadOptimizer  # type: ignore[import-not-found]

        return CPUOffloadOptimizer(weights, torch.optim.AdamW, offload_gradients=True, **settings)  # type: ignore[no-any-return]
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


def main() -> None:
    """A step."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=_CONFIGS)
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--lora", type=int, default=0)
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--optimizer", choices=["adamw", "adamw-8bit", "offloaded"], default="adamw")
    options = parser.parse_args()
    accelerator = Accelerator(mixed_precision="bf16")
    device = accelerator.device
    with device:
        model: Any = CogVideoXTransformer3DModel(**_CONFIGS[options.model])
    if options.lora:
        from peft import LoraConfig

        model.requires_grad_(False)
        model.to(dtype=torch.bfloat16)
        targets = ["to_k", "to_q", "to_v", "to_out.0"]
        model.add_adapter(LoraConfig(r=options.lora, lora_alpha=options.lora, target_modules=targets))
    if options.checkpointing:
        model.enable_gradient_checkpointing()
    weights = [each for each in model.parameters() if each.requires_grad]
    model, optimizer = accelerator.prepare(model, optimizer_of(options, weights))
    scheduler: Any = CogVideoXDPMScheduler()
    alphas = scheduler.alphas_cumprod.to(device, dtype=torch.float32)
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    model.train()
    for _ in range(STEPS):
        latents = torch.zeros(options.rows, _FRAMES, _CHANNELS, _HEIGHT, _WIDTH, dtype=torch.bfloat16, device=device)
        texts = torch.zeros(options.rows, _TOKENS, 4096, dtype=torch.bfloat16, device=device)
        noise = torch.randn_like(latents)
        times = torch.zeros(options.rows, dtype=torch.int64, device=device)
        positions = rotary(device) if options.model == "5b" else None
        noisy = scheduler.add_noise(latents, noise, times)
        output = model(
            hidden_states=noisy, encoder_hidden_states=texts, timestep=times, image_rotary_emb=positions,
            return_dict=False,
        )[0]  # fmt: skip
        found = scheduler.get_velocity(output, noisy, times)
        scales = (1 / (1 - alphas[times])).view(-1, 1, 1, 1, 1)
        loss = torch.mean((scales * (found - latents) ** 2).reshape(options.rows, -1), dim=1).mean()
        accelerator.backward(loss)
        if options.optimizer != "offloaded":
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
