"""A DeepSpeed loop whose optimizer is stepped in several sub-groups and that overflows once."""

from __future__ import annotations

import json
from typing import Any

import deepspeed  # type: ignore[import-untyped]  # DeepSpeed ships no types
import torch
from torch import nn

from memtune.plans.deepspeed_config import deepspeed_config
from memtune.plans.plan import Plan

PLAN = Plan.parse("fp16-z3-none-mb2x4-bk1m")
WIDTH = 32

config = deepspeed_config(PLAN, world=1)
config["zero_optimization"] |= {"sub_group_size": WIDTH * WIDTH, "stage3_param_persistence_threshold": 0}
config["fp16"] |= {"initial_scale_power": 8, "hysteresis": 1}
deepspeed.init_distributed("gloo")
model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)))
groups: list[dict[str, Any]] = [
    {"params": list(model[:2].parameters())},
    {"params": list(model[2:].parameters()), "weight_decay": 0.0},
]
optimizer = torch.optim.AdamW(groups, lr=1e-4)
engine, optimizer, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
for number in range(3):
    for _ in range(PLAN.accumulation):
        engine.backward(
            engine(torch.ones(2, WIDTH, dtype=torch.float16)).float().pow(2).mean() * (1e9 if number == 1 else 1)
        )
        engine.step()
sub_groups = len(optimizer.fp16_groups)
print(json.dumps({"steps": engine.global_steps, "skipped": engine.skipped_steps, "sub_groups": sub_groups}))
