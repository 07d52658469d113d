"""The optimizers of plans: torch's own where there is one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib import import_module
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Adafactor, AdamW, Optimizer

from memtune.plans import knobs
from memtune.plans.plan import Plan
from memtune_runner.checkpoints.optimizer_kernel import keep_kernel
from memtune_runner.engine.blocks import repeated_blocks
from memtune_runner.rank.plan_refusals import PlanError

Parameters = Iterable[nn.Parameter]


def build(plan: Plan, model: nn.Module, lr: float) -> Optimizer:
    """Build the plan's optimizer over all trainable weights; it keeps the plan's kernel when it loads a checkpoint."""
    optimizer = _built(plan, model, lr)
    keep_kernel(optimizer)
    return optimizer


def _built(plan: Plan, model: nn.Module, lr: float) -> Optimizer:
    if plan.optimizer is knobs.Optimizer.MUON:
        return _muon(plan, model, lr)
    kernel = _kernel(plan)
    learning = trainable(model)
    match plan.optimizer:
        case knobs.Optimizer.ADAMW:
            return AdamW(learning, lr=lr, **kernel)
        case knobs.Optimizer.SGD:
            return SGD(learning, lr=lr, momentum=0.9, **kernel)
        case knobs.Optimizer.ADAFACTOR:
            return Adafactor(learning, lr=lr)
        case knobs.Optimizer.LION:
            return Lion(learning, lr=lr)
        case _:
            return _adamw_8bit(plan, learning, lr)


def _kernel(plan: Plan) -> Any:
    # SGD has no fused kernel for DTensors, such as FSDP's shards.
    no_fused = plan.optimizer is knobs.Optimizer.SGD and plan.sharding.backend == "fsdp"
    return {"fused": True} if plan.fused_optimizer and not no_fused else {"foreach": True}


def trainable(model: nn.Module) -> list[nn.Parameter]:
    """Return the trainable weights."""
    return [each for each in model.parameters() if each.requires_grad]


class Lion(Optimizer):
    """Lion (Chen et al. 2302.06675, algorithm 2): the sign of an interpolated momentum, one moment per weight."""

    def __init__(self, params: Parameters, lr: float, betas: tuple[float, float] = (0.9, 0.99)) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]  # torch overloads it
        """Update every weight that has a gradient."""
        loss = closure() if closure else None
        for group in self.param_groups:
            for each in group["params"]:
                if each.grad is not None:
                    self._update(each, group)
        return loss

    def _update(self, weight: torch.Tensor, group: dict[str, Any]) -> None:
        assert weight.grad is not None
        state, (now, later) = self.state[weight], group["betas"]
        if "moment" not in state:
            state["moment"] = torch.zeros_like(weight)
        moment = state["moment"]
        weight.mul_(1 - group["lr"] * group["weight_decay"])
        weight.add_(moment.lerp(weight.grad, 1 - now).sign_(), alpha=-group["lr"])
        moment.lerp_(weight.grad, 1 - later)


class MuonWithAdamW(Optimizer):
    """Muon for the blocks' matrices, AdamW for embeddings, heads, norms and biases, as Muon's authors use it."""

    def __init__(self, matrices: Parameters, others: Parameters, lr: float, fused: bool) -> None:
        # This adjustment gives Muon's updates the size of AdamW's, so one learning rate serves both.
        muon = torch.optim.Muon(matrices, lr=lr, adjust_lr_fn="match_rms_adamw")
        self._parts = (muon, AdamW(others, lr=lr, fused=fused, foreach=not fused))
        self._sizes = tuple(len(each.param_groups) for each in self._parts)
        super().__init__([group for each in self._parts for group in each.param_groups], {})
        self._share()

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]  # torch overloads it
        """Step both optimizers."""
        loss = closure() if closure else None
        for each in self._parts:
            each.step()  # type: ignore[no-untyped-call]  # torch leaves Muon's untyped
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load both optimizers."""
        super().load_state_dict(state_dict)
        self._share()

    def _share(self) -> None:
        """Share this optimizer's groups and states with both, so that schedulers and checkpoints see one optimizer."""
        first = self._sizes[0]
        for part, groups in zip(self._parts, (self.param_groups[:first], self.param_groups[first:]), strict=True):
            part.param_groups, part.state = groups, self.state


def _muon(plan: Plan, model: nn.Module, lr: float) -> Optimizer:
    if not hasattr(torch.optim, "Muon"):
        raise PlanError(f"plan {plan}: muon needs torch 2.9 or newer, this is {torch.__version__}")
    inside = {id(p) for row in repeated_blocks(model) for block in row for p in block.parameters() if p.dim() == 2}
    if not inside:
        raise PlanError(f"plan {plan}: muon is for the matrices of repeated blocks, and this model has none")
    learning = trainable(model)
    matrices = [each for each in learning if id(each) in inside]
    others = [each for each in learning if id(each) not in inside]
    return MuonWithAdamW(matrices, others, lr, fused=plan.fused_optimizer)


def _adamw_8bit(plan: Plan, learning: list[nn.Parameter], lr: float) -> Optimizer:
    libraries, under = _libraries_of_8_bits(plan)
    for library in libraries:
        with suppress(ImportError):
            optimizer: Optimizer = import_module(f"{library}.optim").AdamW8bit(learning, lr=lr)
            return optimizer
    raise PlanError(
        f"plan {plan}: adamw-8bit needs {' or '.join(libraries)}{under}; add {'it' if under else 'one'} to the image, "
        "or use adamw"
    )


def _libraries_of_8_bits(plan: Plan) -> tuple[tuple[str, ...], str]:
    """Return the libraries that work under the plan's sharding, the first choice first, and words for the sharding."""
    if plan.sharding.backend == "fsdp":
        # bitsandbytes takes a shard for the whole weight and writes beyond it (bitsandbytes issue 1633).
        return ("torchao",), " under FSDP"
    if plan.sharding.backend == "deepspeed" and plan.sharding.zero_stage < 3:
        # Stages 1 and 2 split states at each weight, torchao only between blocks; stage 0 cannot reload torchao's.
        return ("bitsandbytes",), " under ZeRO-0 to 2"
    return ("bitsandbytes", "torchao"), ""
