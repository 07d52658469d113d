"""Trains briefly and saves the model for others to load: `saves_model.py KIND DIRECTORY`.

KIND: the Trainer's, or with accelerate its state, its model on all ranks, with diffusers, LoRA, on rank 0, or a part.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM

sys.path.insert(0, str(Path(__file__).parents[3] / "examples" / "scripts"))
from tiny_model import RandomTokens  # type: ignore[import-not-found]  # it lies in examples/scripts


def large_vocabulary() -> LlamaForCausalLM:
    """DeepSpeed does not shard weights of fewer than 100,000 elements."""
    config = LlamaConfig(
        vocab_size=4096, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4
    )
    return LlamaForCausalLM(config)


def of_diffusers() -> Any:
    """A model with diffusers' way to save."""
    sys.path.append(str(Path(__file__).with_name("stand_ins")))
    from diffusers.models.modeling_utils import ModelMixin  # type: ignore[import-not-found]  # it lies in stand_ins

    class Saved(ModelMixin):  # type: ignore[misc]  # as above
        def __init__(self) -> None:
            super().__init__()
            inner = large_vocabulary()
            self.model, self.lm_head = inner.model, inner.lm_head
            self.loss_function, self.config = inner.loss_function, inner.config

        def forward(self, input_ids: torch.Tensor, labels: torch.Tensor, **_: Any) -> Any:
            logits = self.lm_head(self.model(input_ids).last_hidden_state)
            return SimpleNamespace(loss=self.loss_function(logits, labels, self.config.vocab_size))

    return Saved()


def with_lora() -> Any:
    """Adapters on a frozen model. Prints what is gathered of it to save."""
    from peft import LoraConfig, get_peft_model
    from torch.distributed.checkpoint import state_dict

    gather = state_dict.get_model_state_dict

    def told(*arguments: Any, **options: Any) -> Any:
        weights = gather(*arguments, **options)
        print(f"gathered {sorted({name.split('.')[-2] for name in weights})}", flush=True)
        return weights

    state_dict.get_model_state_dict = told
    return get_peft_model(large_vocabulary(), LoraConfig(r=4, target_modules=["q_proj"], task_type="CAUSAL_LM"))


MODELS = {"diffusers": of_diffusers, "lora": with_lora}

kind, directory = sys.argv[1:]
if kind == "trainer":
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(f"{directory}/run", num_train_epochs=1, report_to="none", save_strategy="no")
    trainer = Trainer(model=large_vocabulary(), args=arguments, train_dataset=RandomTokens(16, 32))
    trainer.train()
    trainer.save_model(directory)
else:
    from accelerate import Accelerator  # type: ignore[import-untyped]  # accelerate ships no types

    accelerator = Accelerator()
    model = MODELS.get(kind, large_vocabulary)()
    optimizer = torch.optim.AdamW(each for each in model.parameters() if each.requires_grad)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(RandomTokens(16, 32), batch_size=4))
    model.train()
    for batch in loader:
        accelerator.backward(model(**batch).loss)
        optimizer.step()
        optimizer.zero_grad()
    whole = accelerator.unwrap_model(model)
    if kind == "state":
        weights = accelerator.get_state_dict(model)
        if accelerator.is_main_process:
            whole.save_pretrained(directory, state_dict=weights)
    elif kind in ("model", "diffusers", "lora"):
        whole.save_pretrained(directory, is_main_process=accelerator.is_main_process)
    elif accelerator.is_main_process:
        (whole.model if kind == "part" else whole).save_pretrained(directory)
    if kind == "barrier":
        accelerator.wait_for_everyone()
