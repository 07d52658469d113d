"""Trains sentence embeddings with the Trainer of sentence-transformers, as its documentation does.

python sentence_pairs.py MODEL DATA OUTPUT
"""

from __future__ import annotations

import sys

from datasets import load_dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.losses import CosineSimilarityLoss

name, data, output = sys.argv[1:]
model = SentenceTransformer(name)
rows = load_dataset(data)
arguments = SentenceTransformerTrainingArguments(
    output_dir=output,
    num_train_epochs=2,
    per_device_train_batch_size=16,
    per_device_eval_batch_size=16,
    eval_strategy="epoch",
    save_steps=2,
    logging_steps=1,
    report_to="none",
)
trainer = SentenceTransformerTrainer(
    model=model,
    args=arguments,
    train_dataset=rows["train"],
    eval_dataset=rows["test"],
    loss=CosineSimilarityLoss(model),
)
trainer.train()
model.save_pretrained(f"{output}/final")
