"""Trains a small GPT on bytes, configured as nanoGPT is: settings are globals, which ``--name=value`` replaces.

    python gpt_configured.py --batch_size=8 --gradient_accumulation_steps=2 --max_iters=12

Batches are drawn at random, and accumulation is divided by the ranks. What MemTune asks of such a script is in ``save``
and where ``init_from`` is read.
"""

from __future__ import annotations

import ast
import os
import sys
from pathlib import Path

import torch
from torch import distributed, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from memtune_runner import checkpoint_saved

out_dir = "out"
data = ""
init_from = "scratch"
batch_size = 12
block_size = 64
gradient_accumulation_steps = 40
max_iters = 12
save_interval = 4
n_layer, n_head, n_embd = 2, 2, 64
learning_rate = 1e-3
device = "cuda" if torch.cuda.is_available() else "cpu"
for argument in sys.argv[1:]:
    name, _, given = argument.removeprefix("--").partition("=")
    if not argument.startswith("--") or name not in globals():
        raise ValueError(f"unknown setting: {argument}")
    globals()[name] = given if isinstance(globals()[name], str) else ast.literal_eval(given)

ddp = "RANK" in os.environ
if ddp:
    distributed.init_process_group("nccl" if device == "cuda" else "gloo")
    gradient_accumulation_steps //= distributed.get_world_size()
rank, world = (distributed.get_rank(), distributed.get_world_size()) if ddp else (0, 1)
samples_per_iter = batch_size * gradient_accumulation_steps * world
text = torch.frombuffer(bytearray(Path(data).read_bytes()), dtype=torch.uint8).long()
draws = torch.Generator().manual_seed(1337 + rank)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(n_embd) for _ in range(2))
        self.qkv, self.out = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)
        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        rows, length, _ = hidden.shape
        query, key, value = self.qkv(self.norms[0](hidden)).view(rows, length, 3, n_head, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.out(mixed.transpose(1, 2).reshape(rows, length, n_embd))
        return torch.add(hidden, self.mlp(self.norms[1](hidden)))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(256, n_embd), nn.Embedding(block_size, n_embd)
        self.blocks = nn.Sequential(*(Block() for _ in range(n_layer)))
        self.head = nn.Linear(n_embd, 256, bias=False)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        logits = self.head(self.blocks(self.words(tokens) + self.places(places)))
        return functional.cross_entropy(logits.view(-1, 256), targets.reshape(-1))


def get_batch() -> tuple[torch.Tensor, torch.Tensor]:
    starts = torch.randint(len(text) - block_size - 1, (batch_size,), generator=draws).tolist()
    windows = torch.stack([text[start : start + block_size + 1] for start in starts]).to(device)
    return windows[:, :-1], windows[:, 1:]


def save() -> None:
    directory = Path(out_dir) / f"{os.environ['MEMTUNE_RUN']}-{iter_num}"
    if rank == 0:
        state = {"model": raw_model.state_dict(), "optimizer": optimizer.state_dict()}
        directory.mkdir(parents=True, exist_ok=True)
        torch.save({**state, "iter_num": iter_num, "draws": draws.get_state()}, directory / "ckpt.pt")
    checkpoint_saved(directory, samples=iter_num * samples_per_iter)


torch.manual_seed(1337)
raw_model: nn.Module = GPT().to(device)
optimizer = torch.optim.AdamW(raw_model.parameters(), lr=learning_rate)
iter_num = 0
if init_from not in ("", "scratch"):  # the directory of a checkpoint
    saved = torch.load(Path(init_from) / "ckpt.pt", map_location="cpu")
    raw_model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    draws.set_state(saved["draws"])
    iter_num = saved["iter_num"]
model = DistributedDataParallel(raw_model) if ddp else raw_model
while iter_num < max_iters:
    losses = []
    for _micro_step in range(gradient_accumulation_steps):
        with torch.autocast(device, torch.bfloat16):
            loss = model(*get_batch()) / gradient_accumulation_steps
        losses.append(loss.item())
        loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    iter_num += 1
    if rank == 0:
        print(f"step {iter_num} loss {sum(losses):.6f}", flush=True)
    if iter_num % save_interval == 0:
        save()
if ddp:
    distributed.destroy_process_group()
