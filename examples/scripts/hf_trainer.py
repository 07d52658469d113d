"""A fine-tune with Hugging Face's Trainer. Integration: hf-trainer; the plan replaces the arguments it decides on."""

from __future__ import annotations

import tempfile

from tiny_model import RandomTokens, tiny_llama
from transformers import Trainer, TrainingArguments

trainer = Trainer(
    model=tiny_llama(),
    args=TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        num_train_epochs=1,
        learning_rate=1e-3,
        report_to="none",
        save_strategy="no",
    ),
    train_dataset=RandomTokens(64, 32),
    eval_dataset=RandomTokens(32, 32),
)
trainer.train()
print(f"final loss {trainer.evaluate()['eval_loss']:.3f}")
