"""One rank of the engine's contract suite: trains a small decoder under one plan after another.

``python engine_ranks.py DIRECTORY RANK WORLD DEVICE TASK...``; rank 0 writes the result of each task to
DIRECTORY/results.json. A task is a plan, ``PLAN to DIR`` (train the first half and save it there), ``PLAN from DIR``
(resume from there to the end) or ``PLAN from DIR to DIR`` (train half of the rest, and save it again).
"""

from __future__ import annotations

import json
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.nn import functional

from memtune.plans.plan import Plan
from memtune.plans.resume import Way, resumption
from memtune.wire.report import Device
from memtune.wire.run import RunKind
from memtune_runner.checkpoints import Checkpoint, convert, manifest
from memtune_runner.engine import Engine, Step, initialize
from memtune_runner.rank.settings import Settings

WIDTH = int(os.environ.get("MODEL_WIDTH", "16"))
VOCABULARY, LENGTH, LAYERS = 64, 8, 2
STEPS = int(os.environ.get("TRAINED_STEPS", "10"))
GLOBAL_BATCH, LR, MAX_NORM = 8, 3e-3, 1.0
LAST_LR = LR * 0.7 ** (STEPS // 5)
SHORT_BATCH = 5  # every fifth batch; one of four ranks then has no rows
IGNORED = -100
# Also trained from a checkpoint in the middle.
RESUMED = ("fp32-ddp-every2-mb2x2", "fp32-fsdp-none-mb4x1", "fp32-z1-none-mb1x4", "fp32-z3-none-mb2x2")


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm, self.norm2 = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        query, key, value = self.qkv(self.norm(hidden)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.out(mixed.transpose(1, 2).flatten(2))
        wide = self.down(functional.gelu(self.up(self.norm2(hidden))))
        return torch.add(hidden, wide)


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Block(WIDTH, 2) for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        logits: torch.Tensor = self.head(hidden)
        return logits


def decoder() -> Decoder:
    torch.manual_seed(7)
    return Decoder()


def loss_of(model: nn.Module, micro: dict[str, torch.Tensor]) -> torch.Tensor:
    return functional.cross_entropy(model(micro["tokens"]).flatten(0, 1), micro["labels"].flatten())


def global_batches(steps: int = STEPS) -> Iterator[dict[str, torch.Tensor]]:
    """Yield the same batches on every rank; one row has no labels, others lack some."""
    generator = torch.Generator().manual_seed(11)
    for step in range(steps):
        rows = SHORT_BATCH if step % 5 == 4 else GLOBAL_BATCH
        tokens = torch.randint(0, VOCABULARY // 4, (rows, LENGTH), generator=generator)
        labels = (tokens * 3 + 1) % VOCABULARY
        labels[torch.rand(labels.shape, generator=generator) < 0.3] = IGNORED
        labels[0] = IGNORED
        yield {"tokens": tokens, "labels": labels}


def share(batch: dict[str, torch.Tensor], rank: int, world: int) -> dict[str, torch.Tensor]:
    size = GLOBAL_BATCH // world
    return {name: each[rank * size : (rank + 1) * size] for name, each in batch.items()}


def settings_of(plan: Plan, world: int, device: Device = Device.VIRTUAL, **others: Any) -> Settings:
    nodes = 2 if plan.sharding.value == "fsdphyb" and world > 1 else 1
    return Settings(
        plan=plan,
        kind=RunKind.TRAIN,
        integration="sdk",
        global_batch=plan.global_batch(world),
        sequence_length=LENGTH,
        nodes=nodes,
        gpus_per_node=world // nodes,
        device=device,
        gpu_memory_bytes=1 << 30 if device is Device.VIRTUAL else None,
        **others,
    )


def decaying(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.StepLR(optimizer, step_size=5, gamma=0.7)


def done(task: str, rank: int, world: int, device: Device, directory: Path) -> dict[str, Any]:
    """The result of a task."""
    beginning, _, target = task.partition(" to ")
    form, _, source = beginning.partition(" from ")
    engine = built(Plan.parse(form), world, device, Path(target).parent if target else None)
    if not (source or target):
        return whole(engine, rank, world, directory / form)
    if source:
        engine.load(form_for(engine.settings, Path(source), rank))
    steps = train(engine, rank, world, engine.steps, (engine.steps + STEPS) // 2 if target else STEPS)
    if target:
        engine.save(target)
    return told(engine, steps)


def form_for(settings: Settings, source: Path, rank: int) -> Path:
    """The checkpoint, or its conversion for the plan; if the table says impossible, the checkpoint as it is."""
    found = Checkpoint(source, manifest.read_complete(source))
    saved = found.manifest
    entry = resumption(saved.format, saved.plan, settings.plan, saved.world == settings.world)
    if entry.way is Way.IMPOSSIBLE:
        return source
    if rank == 0:
        convert.converted(found, settings.plan, settings.world)
    distributed.barrier()
    return convert.converted(found, settings.plan, settings.world)


def whole(engine: Engine, rank: int, world: int, directory: Path) -> dict[str, Any]:
    """The result of training under a plan; for some plans also from a checkpoint in the middle."""
    half, settings = STEPS // 2, engine.settings
    steps = train(engine, rank, world, 0, half)
    found: dict[str, Any] = {}
    if str(settings.plan) in RESUMED:
        engine.save(directory)
        resumed = built(settings.plan, world, settings.device)
        resumed.load(directory)
        found["resumed"] = [float(each.loss) for each in train(resumed, rank, world, half, STEPS)]
        found["resumed_samples"] = resumed.samples
    return found | told(engine, steps + train(engine, rank, world, half, STEPS))


def told(engine: Engine, steps: list[Step]) -> dict[str, Any]:
    return {
        "losses": [float(each.loss) for each in steps],
        "norms": [each.gradient_norm for each in steps],
        "skipped": engine.skipped_steps,
        "samples": engine.samples,
        "lr": float(engine.optimizer.param_groups[0]["lr"]),  # a tensor with torchao
    }


def built(plan: Plan, world: int, device: Device, store: Path | None = None) -> Engine:
    settings = settings_of(plan, world, device, checkpoint_path=store)
    return initialize(decoder(), loss=loss_of, lr=LR, scheduler=decaying, max_grad_norm=MAX_NORM, settings=settings)


def train(engine: Engine, rank: int, world: int, first: int, end: int) -> list[Step]:
    done = []
    for batch in list(global_batches())[first:end]:
        for micro in engine.micro_batches(share(batch, rank, world)):
            engine.backward(engine(micro))
        done.append(engine.step())
    return done


def main(directory: Path, rank: int, world: int, device: Device, tasks: list[str]) -> None:
    warnings.simplefilter("ignore")
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)  # a failed test shows the end of the log
    torch.set_num_threads(1)
    os.environ["LOCAL_RANK"] = str(rank)
    backend = "gloo"
    if device is Device.CUDA:
        torch.cuda.set_device(rank)
        backend = "cpu:gloo,cuda:nccl"
    store = distributed.FileStore(str(directory / "store"), world)  # type: ignore[attr-defined]  # torch exports it at run time
    distributed.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=timedelta(seconds=60))
    results = {}
    for task in tasks:
        try:
            results[task] = done(task, rank, world, device, directory)
        except (Exception, CheckpointException):  # the latter is not an Exception
            results[task] = {"error": traceback.format_exc()}
        if rank == 0:
            (directory / "results.json").write_text(json.dumps(results))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Device(sys.argv[4]), sys.argv[5:])
