"""Trains a decoder with transformers' Trainer and computes a metric of its own: the logits of a whole evaluation wait
for its end, on the GPU unless the Trainer is told otherwise.

python metrics_trainer.py MODEL DATA OUTPUT
"""

from __future__ import annotations

import sys
from typing import Any

from datasets import load_dataset
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    EvalPrediction,
    Trainer,
    TrainingArguments,
)

name, data, output = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(name)
rows = load_dataset(data).map(
    lambda row: tokenizer(row["text"], truncation=True, padding="max_length", max_length=64), remove_columns="text"
)


def accuracy(predicted: EvalPrediction) -> dict[str, float]:
    logits: Any = predicted.predictions
    labels: Any = predicted.label_ids
    right = logits.argmax(-1)[:, :-1] == labels[:, 1:]
    return {"accuracy": float(right.mean()), "rows": float(len(right))}


Trainer(
    model=AutoModelForCausalLM.from_pretrained(name),
    args=TrainingArguments(
        output_dir=output,
        max_steps=4,
        per_device_eval_batch_size=1,
        eval_strategy="steps",
        eval_steps=2,
        save_steps=1,
        logging_steps=1,
        report_to="none",
    ),
    train_dataset=rows["train"],
    eval_dataset=rows["train"],
    data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
    compute_metrics=accuracy,
).train()
