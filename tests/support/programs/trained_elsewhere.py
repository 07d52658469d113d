"""A `Trainer` that goes on for two steps after a `checkpoint`, a `loop` or one that has `failed`."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3] / "examples" / "scripts"))

import torch
from tiny_model import RandomTokens, tiny_llama  # type: ignore[import-not-found]  # it lies in examples/scripts
from torch.utils.data import default_collate
from transformers import Trainer, TrainerCallback, TrainingArguments


class FailingError(Exception):
    pass


class Failing(TrainerCallback):
    def on_step_end(self, *_: Any, **__: Any) -> None:
        raise FailingError


def trainer(model: Any, steps: int, saves: str, *callbacks: TrainerCallback) -> Trainer:
    arguments = TrainingArguments(
        output_dir=saves, max_steps=steps, save_steps=steps, report_to="none", disable_tqdm=True
    )
    return Trainer(model, arguments, default_collate, RandomTokens(64, 32), callbacks=list(callbacks))


def loop(model: Any) -> None:
    """Train two steps of four batches of two rows."""
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        for _ in range(4):
            tokens = torch.randint(0, 50, (2, 32))
            model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    elsewhere, saves = sys.argv[1:3]
    model = tiny_llama()
    if elsewhere == "loop":
        loop(model)
    if elsewhere == "failed":
        with suppress(FailingError):
            trainer(tiny_llama(), 2, saves, Failing()).train()
    if elsewhere == "checkpoint":
        trainer(model, 4, saves).train(resume_from_checkpoint=sys.argv[3])
    else:
        trainer(model, 2, saves).train()
