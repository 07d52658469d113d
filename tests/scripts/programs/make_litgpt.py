"""Writes what `litgpt finetune` takes for a pretrained model: random weights of LitGPT's own, and a given tokenizer.

python make_litgpt.py TOKENIZER_DIRECTORY DIRECTORY WIDTH
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import asdict
from pathlib import Path

import torch
import yaml
from litgpt.config import Config
from litgpt.model import GPT

tokenizer, directory = map(Path, sys.argv[1:3])
directory.mkdir()
config = Config(
    name="tiny",
    block_size=128,
    vocab_size=384,
    padded_vocab_size=384,
    n_layer=2,
    n_head=2,
    n_embd=32,
    rotary_percentage=1.0,
    parallel_residual=False,
    bias=False,
    norm_class_name="RMSNorm",
    mlp_class_name="LLaMAMLP",
    intermediate_size=int(sys.argv[3]),
)
torch.save(GPT(config).state_dict(), directory / "lit_model.pth")
(directory / "model_config.yaml").write_text(yaml.safe_dump(asdict(config)))
for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
    shutil.copy(tokenizer / name, directory / name)
