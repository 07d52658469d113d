"""Fine-tunes a causal language model on lines of JSON with a `text`: the whole model, with LoRA, or with QLoRA.

Integration: hf-trainer; the plan replaces the arguments it decides on. Without --model and --data it trains a tiny
model on random tokens.

    python finetune.py --model meta-llama/Meta-Llama-3-8B --data train.jsonl --lora 16 --nf4
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from tiny_model import RandomTokens, tiny_llama
from torch.utils.data import Dataset
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    PreTrainedModel,
    Trainer,
    TrainingArguments,
)

LINEAR_LAYERS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


class Lines(Dataset[dict[str, torch.Tensor]]):
    """The texts of a file, each cut or filled up to the same number of tokens."""

    def __init__(self, file: Path, model: str, length: int) -> None:
        self._texts = [json.loads(line)["text"] for line in file.read_text(encoding="utf-8").splitlines() if line]
        self._length, self._tokenizer = length, AutoTokenizer.from_pretrained(model)
        self._tokenizer.pad_token = self._tokenizer.pad_token or self._tokenizer.eos_token

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        found = self._tokenizer(
            self._texts[index], truncation=True, max_length=self._length, padding="max_length", return_tensors="pt"
        )
        tokens, mask = found["input_ids"][0], found["attention_mask"][0]
        return {"input_ids": tokens, "attention_mask": mask, "labels": tokens.masked_fill(mask == 0, -100)}


def load(options: argparse.Namespace) -> PreTrainedModel:
    """The model to train. A frozen base is kept in bf16 or nf4, for plans in bf16; what learns is in fp32."""
    if options.model is None:
        model = tiny_llama()
    else:
        nf4 = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16)
        model = AutoModelForCausalLM.from_pretrained(
            options.model,
            dtype=torch.bfloat16 if options.lora else torch.float32,
            attn_implementation=options.attention,
            quantization_config=nf4 if options.nf4 else None,
        )
    if options.nf4:
        model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    if options.lora:
        model = get_peft_model(model, LoraConfig(r=options.lora, target_modules=LINEAR_LAYERS, task_type="CAUSAL_LM"))
    return model


parser = argparse.ArgumentParser()
parser.add_argument("--model", help="a name or directory that from_pretrained takes")
parser.add_argument("--data", type=Path, help="a file with one JSON object a line")
parser.add_argument("--length", type=int, default=32, help="tokens of each sequence")
parser.add_argument("--output", default="output", help="directory of the checkpoints")
parser.add_argument("--save-steps", type=int, default=100)
parser.add_argument("--lora", type=int, metavar="RANK", help="train adapters of this rank only")
parser.add_argument("--nf4", action="store_true", help="keep the frozen base in 4 bits; needs --lora")
parser.add_argument("--attention", default="sdpa", choices=("sdpa", "flash_attention_2", "eager"))
options = parser.parse_args()
if (options.model is None) != (options.data is None):
    parser.error("--model and --data go together")
if options.nf4 and not (options.lora and options.model):
    parser.error("--nf4 needs --lora and --model")

# Made first: under ZeRO-3 it is these arguments that let the model be loaded in shards.
arguments = TrainingArguments(
    output_dir=options.output,
    num_train_epochs=1,
    learning_rate=2e-4 if options.lora else 1e-5,
    save_steps=options.save_steps,
    save_total_limit=2,
    report_to="none",
)
data = Lines(options.data, options.model, options.length) if options.data else RandomTokens(64, options.length)
Trainer(model=load(options), args=arguments, train_dataset=data).train()
