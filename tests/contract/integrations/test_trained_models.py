"""Which of the objects that a script passes to `Accelerator.prepare` are trained."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from memtune_runner.integrations.accelerate import trained_models


@pytest.mark.parametrize("trains", [True, False])
def test_the_optimizer_decides_which_model_is_trained(trains: bool) -> None:
    policy, reference = nn.Linear(2, 2).train(trains), nn.Linear(2, 2).train(not trains)
    optimizer = torch.optim.AdamW(policy.parameters())
    assert trained_models([reference, optimizer, policy]) == [policy]


def test_without_an_optimizer_all_weights_that_may_be_trained_are() -> None:
    frozen = nn.Linear(2, 2).requires_grad_(False)
    alone = nn.Linear(2, 2).eval()
    assert trained_models([frozen, alone]) == [alone]


def test_adapters_are_a_part_of_their_model() -> None:
    model = nn.Sequential(nn.Linear(2, 2).requires_grad_(False), nn.Linear(2, 2))
    assert trained_models([model, torch.optim.AdamW(model[1].parameters())]) == [model]
