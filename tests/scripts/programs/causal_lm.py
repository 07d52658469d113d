"""Trains a decoder on lines of text with accelerate: packed blocks, accumulation, a schedule, evaluations, checkpoints.

    accelerate launch causal_lm.py --model DIRECTORY --train FILE --validation FILE --output DIRECTORY

The length of the training, the schedule and the place of a checkpoint are computed from the script's own arguments.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator  # type: ignore[import-untyped]  # it has no types
from accelerate.utils import set_seed  # type: ignore[import-untyped]  # as above
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoTokenizer, default_data_collator, get_scheduler

parser = argparse.ArgumentParser()
parser.add_argument("--model", required=True)
parser.add_argument("--train", type=Path, required=True)
parser.add_argument("--validation", type=Path, required=True)
parser.add_argument("--output", type=Path, required=True)
parser.add_argument("--block-size", type=int, default=120)
parser.add_argument("--per-device-train-batch-size", type=int, default=4)
parser.add_argument("--per-device-eval-batch-size", type=int, default=8)
parser.add_argument("--gradient-accumulation-steps", type=int, default=2)
parser.add_argument("--learning-rate", type=float, default=1e-3)
parser.add_argument("--num-train-epochs", type=int, default=3)
parser.add_argument("--max-train-steps", type=int)
parser.add_argument("--checkpointing-steps", type=int, default=0, help="0 saves at the end of each epoch")
parser.add_argument("--resume-from-checkpoint", default="")
parser.add_argument("--lora-rank", type=int, default=0)
options = parser.parse_args()

accelerator = Accelerator(gradient_accumulation_steps=options.gradient_accumulation_steps)
set_seed(7)
tokenizer = AutoTokenizer.from_pretrained(options.model)
model: Any = AutoModelForCausalLM.from_pretrained(options.model)
if options.lora_rank:
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(model, LoraConfig(r=options.lora_rank, target_modules=["q_proj", "v_proj"]))


def blocks(file: Path) -> list[dict[str, list[int]]]:
    """All tokens of a file, one after the other, in blocks of equal length; the rest at the end is left out."""
    texts = [json.loads(line)["text"] for line in file.read_text().splitlines()]
    tokens = [token for ids in tokenizer(texts)["input_ids"] for token in ids]
    starts = range(0, len(tokens) - options.block_size + 1, options.block_size)
    cut = [tokens[start : start + options.block_size] for start in starts]
    return [{"input_ids": ids, "labels": ids} for ids in cut]


def loader(file: Path, batch_size: int, shuffle: bool) -> DataLoader[dict[str, list[int]]]:
    return DataLoader(blocks(file), batch_size=batch_size, shuffle=shuffle, collate_fn=default_data_collator)  # type: ignore[arg-type]  # a list is a data set


training = loader(options.train, options.per_device_train_batch_size, True)
validation = loader(options.validation, options.per_device_eval_batch_size, False)
optimizer = torch.optim.AdamW((each for each in model.parameters() if each.requires_grad), lr=options.learning_rate)
steps_of_epoch = math.ceil(len(training) / options.gradient_accumulation_steps)
max_steps = options.max_train_steps or options.num_train_epochs * steps_of_epoch
schedule = get_scheduler(
    "linear",
    optimizer,
    num_warmup_steps=2 * accelerator.num_processes,
    num_training_steps=max_steps * accelerator.num_processes,
)
model, optimizer, training, validation, schedule = accelerator.prepare(model, optimizer, training, validation, schedule)
# The loader may have another length now, as on several processes.
steps_of_epoch = math.ceil(len(training) / options.gradient_accumulation_steps)
if options.max_train_steps is None:
    max_steps = options.num_train_epochs * steps_of_epoch
epochs = math.ceil(max_steps / steps_of_epoch)
accelerator.print(f"{max_steps} optimizer steps in {epochs} epochs")

completed, first_epoch, batches_done = 0, 0, 0
if options.resume_from_checkpoint:
    accelerator.load_state(options.resume_from_checkpoint)
    kind, _, number = Path(options.resume_from_checkpoint).name.partition("_")
    completed = int(number) if kind == "step" else (int(number) + 1) * steps_of_epoch
    first_epoch, steps_done = divmod(completed, steps_of_epoch)
    batches_done = steps_done * options.gradient_accumulation_steps

for epoch in range(first_epoch, epochs):
    model.train()
    active = training
    if epoch == first_epoch and batches_done:
        active = accelerator.skip_first_batches(training, batches_done)
    losses: list[torch.Tensor] = []
    for batch in active:
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            losses.append(loss.detach().float())
            accelerator.backward(loss)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            completed += 1
            accelerator.print(f"step {completed} loss {torch.stack(losses).mean():.5f}")
            losses = []
            if options.checkpointing_steps and completed % options.checkpointing_steps == 0:
                accelerator.save_state(str(options.output / f"step_{completed}"))
        if completed >= max_steps:
            break
    model.eval()
    seen = []
    for batch in validation:
        with torch.no_grad():
            seen.append(accelerator.gather_for_metrics(model(**batch).loss.repeat(len(batch["input_ids"]))))
    accelerator.print(f"epoch {epoch} perplexity {math.exp(torch.cat(seen).mean()):.4f}")
    if not options.checkpointing_steps:
        accelerator.save_state(str(options.output / f"epoch_{epoch}"))

accelerator.wait_for_everyone()
trained = accelerator.unwrap_model(model)
weights = accelerator.get_state_dict(model)
trained.save_pretrained(
    options.output / "model",
    is_main_process=accelerator.is_main_process,
    save_function=accelerator.save,
    state_dict=weights,
)
accelerator.end_training()
