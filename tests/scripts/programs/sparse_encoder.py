"""Trains a sparse encoder with the SparseEncoderTrainer of sentence-transformers, as its documentation does.

python sparse_encoder.py MODEL DATA OUTPUT
"""

from __future__ import annotations

import sys

from datasets import load_dataset
from sentence_transformers import SparseEncoder, SparseEncoderTrainer, SparseEncoderTrainingArguments
from sentence_transformers.sparse_encoder.losses import SparseMultipleNegativesRankingLoss, SpladeLoss
from sentence_transformers.sparse_encoder.modules import MLMTransformer, SpladePooling

name, data, output = sys.argv[1:]
model = SparseEncoder(modules=[MLMTransformer(name), SpladePooling(pooling_strategy="max")])
rows = load_dataset(data).select_columns(["sentence1", "sentence2"])
loss = SpladeLoss(
    model,
    loss=SparseMultipleNegativesRankingLoss(model),
    document_regularizer_weight=3e-5,
    query_regularizer_weight=5e-5,
)
arguments = SparseEncoderTrainingArguments(
    output_dir=output,
    num_train_epochs=2,
    per_device_train_batch_size=8,
    eval_strategy="epoch",
    logging_steps=1,
    report_to="none",
)
trainer = SparseEncoderTrainer(
    model=model, args=arguments, train_dataset=rows["train"], eval_dataset=rows["test"], loss=loss
)
trainer.train()
