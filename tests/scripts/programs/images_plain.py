"""Classifies small random images in a plain loop as those of image libraries are: autocast, accumulation, a moving
average of the weights, an evaluation and a checkpoint after each epoch, and a checkpoint to resume from.

    python images_plain.py --batch-size 8 --grad-accum-steps 2 --amp --epochs 2 --output DIRECTORY
"""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("-b", "--batch-size", type=int, default=64)
parser.add_argument("--grad-accum-steps", type=int, default=1)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--amp", action="store_true")
parser.add_argument("--lr", type=float, default=1e-2)
parser.add_argument("--output", type=Path, required=True)
parser.add_argument("--resume", default="", help="a checkpoint to go on from")
options = parser.parse_args()

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
images, labels = torch.randn(64, 3, 64, 64), torch.randint(10, (64,))
training = DataLoader(TensorDataset(images[:48], labels[:48]), batch_size=options.batch_size, shuffle=True)
validation = DataLoader(TensorDataset(images[48:], labels[48:]), batch_size=options.batch_size)
model = nn.Sequential(
    *(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(4)),
    *(nn.Flatten(), nn.Linear(256, 10)),
).to(device)
average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
first = 0
if options.resume:
    saved = torch.load(options.resume, map_location=device)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    first = saved["epoch"] + 1


def autocast() -> torch.autocast | nullcontext[None]:
    return torch.autocast(device.type, torch.bfloat16) if options.amp else nullcontext()


for epoch in range(first, options.epochs):
    model.train()
    for number, (batch, classes) in enumerate(training, start=1):
        with autocast():
            loss = functional.cross_entropy(model(batch.to(device)), classes.to(device))
        (loss / options.grad_accum_steps).backward()
        if number % options.grad_accum_steps == 0 or number == len(training):
            optimizer.step()
            optimizer.zero_grad()
            average.update_parameters(model)
    average.eval()
    with torch.no_grad(), autocast():
        right = sum(int((average(batch.to(device)).argmax(1).cpu() == classes).sum()) for batch, classes in validation)
    print(f"epoch {epoch} loss {loss.item():.4f} right {right} of 16")
    options.output.mkdir(parents=True, exist_ok=True)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
    torch.save(state, options.output / f"checkpoint-{epoch}.pt")
