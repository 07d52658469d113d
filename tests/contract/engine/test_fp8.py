"""Which layers become fp8 layers; a module with torchao's name and signature replaces it, as it is no dependency."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from torch import nn

from memtune.plans.plan import Plan
from memtune_runner.engine import PlanError, precision

PLAN = Plan.parse("fp8-ddp-none-mb1x1")
CUDA = torch.device("cuda", 0)


class Float8Linear(nn.Linear):
    """torchao's replacement for a layer."""


def convert_to_float8_training(
    module: nn.Module, *, module_filter_fn: Callable[[nn.Module, str], bool] | None = None
) -> nn.Module:
    for name, each in module.named_modules():
        if isinstance(each, nn.Linear) and (module_filter_fn is None or module_filter_fn(each, name)):
            each.__class__ = Float8Linear
    return module


@pytest.fixture
def _on_ada(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (8, 9))


@pytest.mark.usefixtures("_on_ada")
def test_layers_whose_sizes_fp8_takes_are_converted(monkeypatch: pytest.MonkeyPatch) -> None:
    package, module = ModuleType("torchao"), ModuleType("torchao.float8")
    module.convert_to_float8_training = convert_to_float8_training  # type: ignore[attr-defined]  # a stand-in
    monkeypatch.setitem(sys.modules, "torchao", package)
    monkeypatch.setitem(sys.modules, "torchao.float8", module)
    model = nn.ModuleDict(
        {
            "taken": nn.Linear(32, 48, bias=False),
            "odd_input": nn.Linear(24, 32),
            "odd_output": nn.Linear(32, 24),
            "norm": nn.LayerNorm(32),
            "embedding": nn.Embedding(32, 32),
        }
    )
    precision._use_fp8(model, PLAN, CUDA)
    assert [name for name, each in model.items() if isinstance(each, Float8Linear)] == ["taken"]


@pytest.mark.usefixtures("_on_ada")
def test_an_image_without_torchao_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao", None)
    monkeypatch.setitem(sys.modules, "torchao.float8", None)
    with pytest.raises(PlanError, match="fp8 needs torchao; add it to the image"):
        precision._use_fp8(nn.Linear(32, 32), PLAN, CUDA)


def test_a_gpu_before_ada_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (8, 6))
    with pytest.raises(PlanError, match="this GPU has no fp8"):
        precision._use_fp8(nn.Linear(32, 32), PLAN, CUDA)
