"""A Trainer whose samples are pairs of rows, and whose loss asks the model for a reference without gradients."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3] / "examples" / "scripts"))

import torch
from tiny_model import RandomTokens, tiny_llama  # type: ignore[import-not-found]  # it lies in examples/scripts
from transformers import Trainer, TrainingArguments


def pairs(samples: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """The good rows, and behind them the bad ones."""
    tokens = torch.stack([sample["input_ids"] for sample in samples])
    rows = torch.cat([tokens, tokens.flip(1)])
    return {"input_ids": rows, "labels": rows}


class Preferring(Trainer):
    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        with torch.no_grad():
            reference = model(**inputs).loss
        outputs = model(**inputs)
        loss = outputs.loss - reference
        return (loss, outputs) if return_outputs else loss


Preferring(
    model=tiny_llama(),
    args=TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        num_train_epochs=1,
        eval_strategy="steps",
        eval_steps=2,
        per_device_eval_batch_size=4,
        report_to="none",
        save_strategy="no",
    ),
    data_collator=pairs,
    train_dataset=RandomTokens(36, 32),
    eval_dataset=RandomTokens(8, 32),
).train()
