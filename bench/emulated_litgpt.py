"""litgpt's fine-tuning on one GPU, on tokens that are all zeros: LoRA, with weights in bf16 or in nf4.

Run by `memtune emulate`, with a Python that has litgpt. It is the loop of litgpt's own `finetune/lora.py` with its
model, its precision plugin and its loss, without a tokenizer, a data set and a checkpoint from disk. The first
micro-batch is the longest, as in the original.
"""

from __future__ import annotations

import argparse
from typing import Any

import lightning
import torch
from litgpt.lora import GPT, Config, mark_only_lora_as_trainable
from litgpt.utils import chunked_cross_entropy, instantiate_bnb_optimizer, instantiate_torch_optimizer

STEPS, ACCUMULATED = 2, 2
_TARGETS = ("query", "key", "value", "projection", "mlp", "head")


def fabric_for(quantized: Any) -> lightning.Fabric:
    """With or without the plugin that keeps weights in 4 bits."""
    if not quantized:
        return lightning.Fabric(devices=1, precision="bf16-true")
    from lightning.fabric.plugins import BitsandbytesPrecision

    return lightning.Fabric(devices=1, plugins=BitsandbytesPrecision(quantized, torch.bfloat16))


def main() -> None:
    """Two steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--others", type=int, default=128, help="tokens of all micro-batches but the first")
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--targets", nargs="+", choices=_TARGETS, default=["query", "value"])
    parser.add_argument("--quantized", default="")
    options = parser.parse_args()
    targets = {f"lora_{name}": name in options.targets for name in _TARGETS}
    config = Config.from_name(options.model, lora_r=options.rank, lora_alpha=16, lora_dropout=0.05, **targets)
    fabric = fabric_for(options.quantized)
    with fabric.init_module(empty_init=False):
        model = GPT(config)
    mark_only_lora_as_trainable(model)
    model = fabric.setup_module(model)
    if options.quantized:
        arguments = {"lr": 2e-4, "weight_decay": 0.0, "betas": [0.9, 0.95]}
        plain = instantiate_bnb_optimizer(
            {"class_path": "torch.optim.AdamW", "init_args": arguments}, model.parameters()
        )
    else:
        plain = instantiate_torch_optimizer("AdamW", model.parameters())
    optimizer: Any = fabric.setup_optimizers(plain)
    model.max_seq_length = options.length
    for micro_batch in range(STEPS * ACCUMULATED):
        length = options.others if micro_batch else options.length
        tokens = torch.zeros(options.rows, length, dtype=torch.long, device=fabric.device)
        is_last = micro_batch % ACCUMULATED == ACCUMULATED - 1
        with fabric.no_backward_sync(model, enabled=not is_last):
            logits = model(tokens, lm_head_chunk_size=128)
            logits[-1] = logits[-1][..., :-1, :]
            loss = chunked_cross_entropy(logits, tokens[..., 1:])
            fabric.backward(loss / ACCUMULATED)
        if is_last:
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    main()
