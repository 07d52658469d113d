"""A character-level GPT in the manner of nanoGPT. Integration: env; a resumed run draws the batches that were left.

python examples/scripts/characters.py --batch_size=8 --gradient_accumulation_steps=2
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
from torch import distributed, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

if os.environ.get("MEMTUNE_RUN"):
    from memtune_runner import checkpoint_saved
else:  # the script runs without MemTune

    def checkpoint_saved(directory: Path, samples: int) -> None:
        pass


LENGTH, WIDTH, HEADS, LAYERS = 32, 64, 4, 2
SAVE_EVERY = 4

parser = argparse.ArgumentParser()
parser.add_argument("--text", type=Path, default=Path(__file__), help="by default, this script")
parser.add_argument("--batch_size", type=int, default=8)
parser.add_argument("--gradient_accumulation_steps", type=int, default=2, help="over all ranks")
parser.add_argument("--max_iters", type=int, default=12)
parser.add_argument("--out_dir", default="checkpoints")
parser.add_argument("--init_from", default="", help="the directory of a checkpoint")
options = parser.parse_args()

device = (
    torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if torch.cuda.is_available() else torch.device("cpu")
)
if device.type == "cuda":
    torch.cuda.set_device(device)
ddp = "RANK" in os.environ
if ddp:
    distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
rank, world = (distributed.get_rank(), distributed.get_world_size()) if ddp else (0, 1)
accumulation = options.gradient_accumulation_steps // world

text = options.text.read_text()
characters = sorted(set(text))
numbers = torch.tensor([characters.index(each) for each in text])


class Block(nn.Module):
    """Attention to earlier characters, and a perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        heads = self.qkv(self.norm(hidden)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(*heads, is_causal=True)
        hidden = hidden + self.out(seen.transpose(1, 2).flatten(2))
        return torch.add(hidden, self.mlp(hidden))


class Model(nn.Module):
    """Scores of each next character."""

    def __init__(self) -> None:
        super().__init__()
        self.characters, self.places = nn.Embedding(len(characters), WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.head = nn.Linear(WIDTH, len(characters))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.blocks(self.characters(batch) + self.places.weight))
        return scores


torch.manual_seed(0)
raw = Model().to(device)
optimizer = torch.optim.AdamW(raw.parameters(), lr=1e-3)
draws = torch.Generator().manual_seed(rank)  # of the training's batches alone
iteration = 0
if options.init_from:
    saved = torch.load(Path(options.init_from) / "state.pt", map_location=device)
    raw.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    iteration = saved["iteration"]
    draws.set_state(torch.load(Path(options.init_from) / f"draws-{rank}.pt"))
model = DistributedDataParallel(raw) if ddp else raw


def save() -> None:
    """Each rank draws batches of its own, and saves where it is."""
    directory = Path(options.out_dir) / f"{os.environ.get('MEMTUNE_RUN') or 'alone'}-{iteration}"
    directory.mkdir(parents=True, exist_ok=True)
    torch.save(draws.get_state(), directory / f"draws-{rank}.pt")
    if rank == 0:
        state = {"model": raw.state_dict(), "optimizer": optimizer.state_dict(), "iteration": iteration}
        torch.save(state, directory / "state.pt")
    checkpoint_saved(directory, samples=iteration * options.batch_size * accumulation * world)


while iteration < options.max_iters:
    total = 0.0
    for _ in range(accumulation):
        starts = torch.randint(len(text) - LENGTH, (options.batch_size,), generator=draws)
        rows = numbers[starts[:, None] + torch.arange(LENGTH + 1)].to(device)
        with torch.autocast(device.type, torch.bfloat16):
            loss = functional.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten()) / accumulation
        loss.backward()
        total += loss.item()
    optimizer.step()
    optimizer.zero_grad()
    iteration += 1
    if rank == 0:
        print(f"step {iteration} loss {total:.4f}", flush=True)
    if iteration % SAVE_EVERY == 0:
        save()
if ddp:
    distributed.destroy_process_group()
