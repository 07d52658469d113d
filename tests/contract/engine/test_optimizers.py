"""The optimizers of plans, on one rank without a wrapper."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from copy import deepcopy
from types import ModuleType

import pytest
import torch
from engine_ranks import Decoder, decoder, global_batches, loss_of
from torch import distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

from memtune.plans.knobs import Optimizer
from memtune.plans.plan import Plan
from memtune.plans.refusals import backend_refusal
from memtune_runner.engine import PlanError, optimizers

HERE = [each for each in Optimizer if each is not Optimizer.ADAMW_8BIT]


def plan_with(optimizer: Optimizer, fused: bool = True, sharding: str = "ddp") -> Plan:
    short = "" if optimizer is Optimizer.ADAMW else f"-{optimizer.value.replace('-', '')}"
    return Plan.parse(f"fp32-{sharding}-none-mb1x1{short}{'' if fused else '-foreach'}")


def train(model: Decoder, optimizer: torch.optim.Optimizer, steps: int) -> list[float]:
    losses = []
    for batch in global_batches(steps):
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "foreach"])
@pytest.mark.parametrize("optimizer", HERE)
def test_an_optimizer_learns_and_goes_on_from_its_state(optimizer: Optimizer, fused: bool) -> None:
    model, twin = decoder(), decoder()
    plan = plan_with(optimizer, fused)
    built, other = optimizers.build(plan, model, 2e-3), optimizers.build(plan, twin, 2e-3)
    losses = train(model, built, 8)
    assert losses[-1] < losses[0]
    twin.load_state_dict(model.state_dict())
    other.load_state_dict(deepcopy(built.state_dict()))  # torch would share the tensors
    assert train(twin, other, 3) == train(model, built, 3)


@pytest.mark.parametrize("optimizer", [Optimizer.ADAMW, Optimizer.SGD, Optimizer.MUON])
@pytest.mark.parametrize("fused", [True, False], ids=["fused", "foreach"])
def test_a_checkpoint_of_another_kernel_leaves_the_plan_its_own(fused: bool, optimizer: Optimizer) -> None:
    model, twin = decoder(), decoder()
    saved, own = (optimizers.build(plan_with(optimizer, each), model, 2e-3) for each in (not fused, fused))
    train(model, saved, 2)
    other = optimizers.build(plan_with(optimizer, fused), twin, 1e-3)
    other.load_state_dict(deepcopy(saved.state_dict()))
    assert [each.get("fused") for each in other.param_groups] == [each.get("fused") for each in own.param_groups]
    assert [each.get("foreach") for each in other.param_groups] == [each.get("foreach") for each in own.param_groups]
    assert {each["lr"] for each in other.param_groups} == {2e-3}, "all else is what was saved"


@pytest.fixture
def one_rank() -> Iterator[DeviceMesh]:
    store = distributed.HashStore()  # type: ignore[attr-defined]  # torch exports it without saying so
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "foreach"])
@pytest.mark.parametrize("optimizer", HERE)
def test_shards_learn_as_whole_weights_do_or_are_refused(
    optimizer: Optimizer, fused: bool, one_rank: DeviceMesh
) -> None:
    plan = plan_with(optimizer, fused, "fsdp")
    if backend_refusal(plan):
        assert optimizer is Optimizer.ADAFACTOR
        return
    model, whole = decoder(), decoder()
    for unit in (*model.layers, model):
        fully_shard(unit, mesh=one_rank)
    losses = train(model, optimizers.build(plan, model, 2e-3), 8)
    assert losses == pytest.approx(train(whole, optimizers.build(plan, whole, 2e-3), 8), rel=1e-5)


def test_lion_steps_by_the_sign_of_the_interpolated_momentum() -> None:
    weight = nn.Parameter(torch.tensor([1.0, 1.0]))
    lion = optimizers.Lion([weight], lr=0.1)
    for gradient in ([2.0, -4.0], [-1.0, 1.0]):
        weight.grad = torch.tensor(gradient)
        lion.step()
    # First step: moment 0, signs of the gradient. Second: 0.9 x (0.02, -0.04) + 0.1 x (-1, 1) = (-0.082, 0.064).
    assert torch.allclose(weight.detach(), torch.tensor([1.0 - 0.1 + 0.1, 1.0 + 0.1 - 0.1]))
    # The moment: 0.99 x (0.02, -0.04) + 0.01 x (-1, 1).
    assert torch.allclose(lion.state[weight]["moment"], torch.tensor([0.0098, -0.0296]))


def test_muon_takes_the_matrices_of_the_blocks_and_one_learning_rate_moves_both() -> None:
    model = decoder()
    muon = optimizers.build(plan_with(Optimizer.MUON), model, 1e-3)
    matrices = {id(each) for each in muon.param_groups[0]["params"]}
    assert matrices == {id(each) for each in model.layers.parameters() if each.dim() == 2}
    everything = {id(each) for group in muon.param_groups for each in group["params"]}
    assert everything == {id(each) for each in model.parameters()}
    scheduler = torch.optim.lr_scheduler.LambdaLR(muon, lambda _: 0.0)
    before = [each.clone() for each in model.parameters()]
    train(model, muon, 1)
    scheduler.step()
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True)), "lr is 0"


def test_muon_refuses_a_model_without_blocks() -> None:
    with pytest.raises(PlanError, match="this model has none"):
        optimizers.build(plan_with(Optimizer.MUON), nn.Linear(2, 2), 1e-3)


def test_frozen_weights_are_left_out() -> None:
    model = decoder()
    model.embed.requires_grad_(False)
    built = optimizers.build(plan_with(Optimizer.ADAMW), model, 1e-3)
    assert id(model.embed.weight) not in {id(each) for each in built.param_groups[0]["params"]}


def with_library(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this the only installed library with 8-bit optimizers."""
    for name in ("bitsandbytes", "bitsandbytes.optim", "torchao", "torchao.optim"):
        monkeypatch.setitem(sys.modules, name, None)
    package, module = ModuleType(library), ModuleType(f"{library}.optim")
    module.AdamW8bit = torch.optim.SGD  # type: ignore[attr-defined]  # a stand-in of the same shape
    monkeypatch.setitem(sys.modules, library, package)
    monkeypatch.setitem(sys.modules, f"{library}.optim", module)


def test_the_8_bit_optimizer_is_refused_without_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("bitsandbytes", "bitsandbytes.optim", "torchao", "torchao.optim"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(PlanError, match="adamw-8bit needs bitsandbytes or torchao; add one to the image"):
        optimizers.build(plan_with(Optimizer.ADAMW_8BIT), decoder(), 1e-3)


def test_the_8_bit_optimizer_of_bitsandbytes_is_not_given_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    with_library("bitsandbytes", monkeypatch)
    with pytest.raises(PlanError, match="adamw-8bit needs torchao under FSDP; add it to the image, or use adamw"):
        optimizers.build(plan_with(Optimizer.ADAMW_8BIT, sharding="fsdp"), decoder(), 1e-3)


@pytest.mark.parametrize("sharding", ["z0", "z1", "z2"])
def test_the_8_bit_optimizer_of_torchao_is_not_given_to_deepspeed_below_stage_3(
    sharding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_library("torchao", monkeypatch)
    with pytest.raises(PlanError, match="adamw-8bit needs bitsandbytes under ZeRO-0 to 2; add it to the image"):
        optimizers.build(plan_with(Optimizer.ADAMW_8BIT, sharding=sharding), decoder(), 1e-3)


@pytest.mark.parametrize("library", ["bitsandbytes", "torchao"])
def test_the_8_bit_optimizer_is_taken_from_either_library(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with_library(library, monkeypatch)
    assert isinstance(optimizers.build(plan_with(Optimizer.ADAMW_8BIT), decoder(), 1e-3), torch.optim.SGD)
