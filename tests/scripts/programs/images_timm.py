"""Classifies small random images with timm, in a loop as its own training script has: a model and an optimizer by their
names, a schedule that is told of updates and epochs, a moving average of the weights that is evaluated, and its saver.

    python images_timm.py --batch-size 8 --grad-accum-steps 2 --amp --epochs 3 --output DIRECTORY

What MemTune asks of such a script is below the saver's call and where ``--resume`` is read.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from contextlib import nullcontext
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "stand_ins"))

import torch
from timm.loss import LabelSmoothingCrossEntropy
from timm.models import create_model, load_checkpoint, resume_checkpoint
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import AverageMeter, CheckpointSaver, ModelEmaV3, accuracy, dispatch_clip_grad
from torch.utils.data import DataLoader, TensorDataset

from memtune_runner import checkpoint_saved

parser = argparse.ArgumentParser()
parser.add_argument("-b", "--batch-size", type=int, default=64)
parser.add_argument("--grad-accum-steps", type=int, default=1)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--model", default="test_vit")
parser.add_argument("--opt", default="adamw")
parser.add_argument("--sched", default="cosine")
parser.add_argument("--lr", type=float, default=1e-3)
parser.add_argument("--clip-grad", type=float, default=1.0)
parser.add_argument("--amp", action="store_true")
parser.add_argument("--output", type=Path, required=True)
parser.add_argument("--resume", default="", help="the directory of a checkpoint to resume from")
options = parser.parse_args()

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
images, labels = torch.randn(64, 3, 64, 64), torch.randint(10, (64,))
order = torch.Generator()
training = DataLoader(
    TensorDataset(images[:48], labels[:48]), batch_size=options.batch_size, shuffle=True, generator=order
)
validation = DataLoader(TensorDataset(images[48:], labels[48:]), batch_size=4)
model = create_model(options.model, img_size=64, patch_size=4, num_classes=10).to(device)
optimizer = create_optimizer_v2(model, opt=options.opt, lr=options.lr, weight_decay=0.05)
average = ModelEmaV3(model, decay=0.9)
first = 0
if options.resume:
    file = f"{options.resume}/last.pth.tar"
    first = resume_checkpoint(model, file, optimizer, weights_only=False) or 0
    load_checkpoint(average.module, file, use_ema=True, weights_only=False)
updates_per_epoch = -(-len(training) // options.grad_accum_steps)
schedule, epochs = create_scheduler_v2(
    optimizer,
    sched=options.sched,
    num_epochs=options.epochs,
    warmup_epochs=1,
    step_on_epochs=False,
    updates_per_epoch=updates_per_epoch,
)
assert schedule is not None
schedule.step_update(first * updates_per_epoch)
options.output.mkdir(parents=True, exist_ok=True)
saver = CheckpointSaver(
    model, optimizer, args=options, model_ema=average, checkpoint_dir=str(options.output), max_history=2
)
lost_by = LabelSmoothingCrossEntropy(0.1)


def autocast() -> torch.autocast | nullcontext[None]:
    return torch.autocast(device.type, torch.bfloat16) if options.amp else nullcontext()


def train(epoch: int) -> None:
    model.train()
    order.manual_seed(epoch)
    updates, losses = epoch * updates_per_epoch, AverageMeter()
    for number, (batch, classes) in enumerate(training, start=1):
        with autocast():
            loss = lost_by(model(batch.to(device)).float(), classes.to(device))
        (loss / options.grad_accum_steps).backward()
        losses.update(loss.item(), len(batch))
        if number % options.grad_accum_steps and number < len(training):
            continue
        dispatch_clip_grad(model.parameters(), options.clip_grad)
        optimizer.step()
        optimizer.zero_grad()
        updates += 1
        average.update(model, step=updates)
        schedule.step_update(updates, losses.avg)
        print(f"step {updates} loss {losses.avg:.6f}", flush=True)
        losses.reset()


def evaluate() -> float:
    right = AverageMeter()
    average.module.eval()
    with torch.no_grad(), autocast():
        for batch, classes in validation:
            right.update(accuracy(average.module(batch.to(device)), classes.to(device))[0].item(), len(batch))
    return float(right.avg)


for epoch in range(first, epochs):
    train(epoch)
    metric = evaluate()
    schedule.step(epoch + 1, metric)
    best, best_epoch = saver.save_checkpoint(epoch, metric)
    print(f"epoch {epoch}: {metric:.1f}% right, most after epoch {best_epoch}: {best:.1f}%", flush=True)
    # The saver overwrites its newest file after each epoch: a relaunch resumes from a directory of its own.
    directory = options.output / f"{os.environ['MEMTUNE_RUN']}-epoch-{epoch}"
    directory.mkdir()
    shutil.copy(options.output / "last.pth.tar", directory)
    checkpoint_saved(directory, samples=(epoch + 1) * 48)
