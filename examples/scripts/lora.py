"""A LoRA fine-tune with PEFT and Hugging Face's Trainer. Integration: hf-trainer."""

from __future__ import annotations

import tempfile

from peft import LoraConfig, get_peft_model
from tiny_model import RandomTokens, tiny_llama
from transformers import Trainer, TrainingArguments

model = get_peft_model(tiny_llama(), LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
trainer = Trainer(
    model=model,
    args=TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        num_train_epochs=1,
        gradient_checkpointing=True,
        report_to="none",
        save_strategy="no",
    ),
    train_dataset=RandomTokens(64, 32),
)
trainer.train()
