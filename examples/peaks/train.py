"""A small decoder under FSDP2, trained on random tokens: the script whose memory test_memory.py watches."""

from __future__ import annotations

import argparse

import torch
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional

VOCABULARY, WIDTH, HEADS = 32000, 1024, 16


class Block(nn.Module):
    """Attention and a feed-forward layer."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.inner_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mixed, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        rows, length, _ = hidden.shape
        heads = self.mixed(self.attention_norm(hidden)).view(rows, length, 3, HEADS, -1).transpose(1, 3).unbind(2)
        attended = functional.scaled_dot_product_attention(*heads, is_causal=True)
        hidden = hidden + self.out(attended.transpose(1, 2).reshape(rows, length, WIDTH))
        inner = functional.gelu(self.up(self.inner_norm(hidden)))
        return hidden + self.down(inner)


def main() -> None:
    """A few steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--length", type=int, default=1024)
    options = parser.parse_args()
    distributed.init_process_group("nccl")
    torch.cuda.set_device(distributed.get_rank() % torch.cuda.device_count())
    layers = [Block() for _ in range(options.layers)]
    model = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), *layers, nn.Linear(WIDTH, VOCABULARY)).cuda()
    for block in layers:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        tokens = torch.randint(VOCABULARY, (options.rows, options.length), device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(tokens)
        loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
