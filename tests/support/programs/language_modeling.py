"""A causal language model trained by a script that knows nothing of MemTune, as accelerate's users write theirs.

The model comes from a directory, in evaluation mode; the length of the training and of the schedule comes from the
loader and the script's own accumulation; checkpoints are named after the optimizer steps; each epoch is evaluated.
``--own-accumulation`` accumulates without the Accelerator's help, ``--stream`` hides the length of the data,
``--listed`` keeps the batches of an epoch, ``--all-epochs`` begins each epoch although all steps are made. What
``--micro-steps`` and ``--miscount`` do is wrong under any plan but the script's own, what ``--no-skip`` does under all:
a resumed epoch begins anew.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3] / "examples" / "scripts"))

import torch
from accelerate import Accelerator  # type: ignore[import-untyped]  # accelerate ships no types
from accelerate.utils import DataLoaderConfiguration  # type: ignore[import-untyped]  # as above
from tiny_model import RandomTokens, tiny_llama  # type: ignore[import-not-found]  # it lies in examples/scripts
from torch.utils.data import DataLoader, IterableDataset
from transformers import AutoModelForCausalLM, default_data_collator, get_scheduler


class Streamed(IterableDataset[dict[str, torch.Tensor]]):
    """Rows of which nobody knows how many come."""

    def __init__(self, rows: RandomTokens) -> None:
        self._rows = rows

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        return (self._rows[number] for number in range(len(self._rows)))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--accumulation", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--max-steps", type=int)
    parser.add_argument("--rows", type=int, default=58)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--save-every", type=int, default=0)
    parser.add_argument("--output-dir", type=Path)
    parser.add_argument("--resume-from")
    parser.add_argument("--no-load", action="store_true")
    parser.add_argument("--own-accumulation", action="store_true")
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--dispatch", action="store_true")
    parser.add_argument("--micro-steps", type=int)
    parser.add_argument("--miscount", action="store_true")
    parser.add_argument("--all-epochs", action="store_true")
    parser.add_argument("--listed", action="store_true")
    parser.add_argument("--no-skip", action="store_true")
    return parser.parse_args()


def from_directory() -> Any:
    with tempfile.TemporaryDirectory() as directory:
        tiny_llama().save_pretrained(directory)
        return AutoModelForCausalLM.from_pretrained(directory)


args = parsed()
config = DataLoaderConfiguration(dispatch_batches=True if args.dispatch else None)
own = {} if args.own_accumulation else {"gradient_accumulation_steps": args.accumulation}
model = from_directory()
accelerator = Accelerator(dataloader_config=config, **own)
rows = RandomTokens(args.rows, args.length)
data: dict[str, Any] = {"dataset": Streamed(rows)} if args.stream else {"dataset": rows, "shuffle": True}
torch.manual_seed(1)
loader = DataLoader(collate_fn=default_data_collator, batch_size=args.batch_size, **data)
evaluation = DataLoader(RandomTokens(8, args.length), collate_fn=default_data_collator, batch_size=args.batch_size)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
max_steps = args.max_steps or args.epochs * math.ceil(len(loader) / args.accumulation)
schedule_steps = max_steps * (accelerator.num_processes if args.max_steps else 1)
scheduler = get_scheduler("linear", optimizer, num_warmup_steps=0, num_training_steps=schedule_steps)
model, optimizer, loader, evaluation, scheduler = accelerator.prepare(model, optimizer, loader, evaluation, scheduler)

steps_per_epoch = None if args.stream else math.ceil(len(loader) / args.accumulation)
if args.max_steps is None and steps_per_epoch is not None:
    max_steps = args.epochs * steps_per_epoch
epochs = args.epochs if steps_per_epoch is None or args.all_epochs else math.ceil(max_steps / steps_per_epoch)
accelerator.print(f"{max_steps} steps in {epochs} epochs")

completed = first_epoch = skipped = 0
if args.resume_from:
    if not args.no_load:
        accelerator.load_state(args.resume_from)
    completed = int(Path(args.resume_from).name.removeprefix("step_"))
    skipped = completed * args.accumulation + (1 if args.miscount else 0)
    if steps_per_epoch is not None:
        first_epoch, skipped = divmod(skipped, len(loader))


def ends_step(number: int) -> bool:
    """Whether the batch with this number, from 1, is the last one of an optimizer step."""
    if args.own_accumulation:
        return number % args.accumulation == 0 or number == len(loader)
    return bool(accelerator.sync_gradients)


def take_step() -> None:
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()


def trained_on(batch: Any) -> torch.Tensor:
    """The batch's loss, whose gradients are computed."""
    if args.own_accumulation:
        loss = model(**batch).loss
        accelerator.backward(loss / args.accumulation)
    else:
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            take_step()
    detached: torch.Tensor = loss.detach()
    return detached


seen = 0
for epoch in range(first_epoch, epochs):
    model.train()
    is_resumed = args.resume_from and epoch == first_epoch and not args.no_skip
    batches = accelerator.skip_first_batches(loader, skipped) if is_resumed else loader
    if args.listed:
        batches = list(batches) if batches else []
    losses: list[torch.Tensor] = []
    for number, batch in enumerate(batches, 1):
        losses.append(trained_on(batch) * len(batch["input_ids"]))
        seen += len(batch["input_ids"])
        if ends_step(number):
            if args.own_accumulation:
                take_step()
            completed += 1
            accelerator.print(f"step {completed} loss {torch.stack(losses).sum() / 8:.7f}")
            losses.clear()
            if args.save_every and completed % args.save_every == 0:
                accelerator.save_state(str(args.output_dir / f"step_{completed}"))
        if completed >= max_steps or number == args.micro_steps:
            break
    model.eval()
    with torch.no_grad():
        evaluated = torch.stack([accelerator.gather(model(**batch).loss) for batch in evaluation])
    accelerator.print(f"epoch {epoch} evaluated {evaluated.mean():.5f}")
accelerator.print(f"trained {completed} steps on {seen} rows, learning rate {scheduler.get_last_lr()[0]:.2e}")
