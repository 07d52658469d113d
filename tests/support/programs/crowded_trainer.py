"""The built-in trainer in a process that needs memory for something else, too, once its training has made two steps."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from memtune.model.plain import from_facts
from memtune.wire import environment
from memtune_runner.rank.settings import read_settings
from memtune_runner.trainer import main

# The job's own description is for the prediction alone: its command might train anything.
os.environ[environment.ARCHITECTURE] = json.dumps(asdict(from_facts(json.loads(sys.argv[1]))))
settings = read_settings(os.environ)
taken: list[torch.Tensor] = []
steps = settings.resume_samples // settings.global_batch


def crowd(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """From the second step of the training on the process keeps so many bytes."""
    global steps
    steps += 1
    if steps >= 2 and not taken and not settings.is_probe:
        device = optimizer.param_groups[0]["params"][0].device
        taken.append(torch.empty(int(sys.argv[2]), dtype=torch.uint8, device=device))


register_optimizer_step_post_hook(crowd)
sys.exit(main(sys.argv[3:]))
