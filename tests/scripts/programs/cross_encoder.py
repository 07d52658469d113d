"""Trains a reranker with the CrossEncoderTrainer of sentence-transformers, as its documentation does.

python cross_encoder.py MODEL DATA OUTPUT
"""

from __future__ import annotations

import sys

from datasets import load_dataset
from sentence_transformers.cross_encoder import CrossEncoder, CrossEncoderTrainer, CrossEncoderTrainingArguments
from sentence_transformers.cross_encoder.losses import BinaryCrossEntropyLoss

name, data, output = sys.argv[1:]
model = CrossEncoder(name, num_labels=1)
rows = load_dataset(data, split="train").rename_column("score", "label")
arguments = CrossEncoderTrainingArguments(
    output_dir=output,
    num_train_epochs=2,
    per_device_train_batch_size=8,
    learning_rate=1e-3,
    save_steps=2,
    logging_steps=1,
    report_to="none",
)
CrossEncoderTrainer(model=model, args=arguments, train_dataset=rows, loss=BinaryCrossEntropyLoss(model)).train()
