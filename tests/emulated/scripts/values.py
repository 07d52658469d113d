"""What control flow needs of the GPU's values; an assertion fails where they would mislead it."""

from typing import Any

import torch
from torch.nn import functional

numbers = torch.arange(10, device="cuda")
assert numbers.tolist() == list(range(10))
assert numbers[numbers > 4].tolist() == [5, 6, 7, 8, 9]
assert (torch.tensor([3, 4], device="cuda") * 2).tolist() == [6, 8]


class Kept(torch.nn.Parameter):
    """A class of weights without operators of its own, as those of bitsandbytes are."""


assert Kept(torch.arange(3.0, device="cuda")).detach().tolist() == [0, 1, 2]

mask = torch.ones(2, 8, device="cuda", dtype=torch.bool)
assert mask.all().item()
mask[0, 3] = False
assert not mask.all().item()
assert mask.nonzero().shape == (15, 2)
assert torch.zeros(10000, 10000, device="cuda").sum().item() == 0
half = torch.full((1024, 1024), 0.5, device="cuda", dtype=torch.float16)
assert torch.addmm(half, half, half, alpha=2)[5, 7].item() == 512.5
large, rows = torch.empty(8, 1 << 20, device="cuda"), torch.tensor([True, False] * 4, device="cuda")
assert torch.masked_select(large, rows[:, None]).numel() == 4 << 20

layer, router = torch.nn.Linear(4096, 4096).cuda(), torch.nn.Linear(4096, 8).cuda()
hidden = layer(torch.randn(16, 4096, device="cuda"))
loss = hidden.float().mean()
assert loss.item() == 1.0  # a value that no kernel has computed
loss.backward()
norm = torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
assert torch.isfinite(norm)
assert norm > 0
assert not torch.isnan(hidden).any()
assert layer.weight.grad is not None
assert torch.isfinite(layer.weight.grad).all()
assert "1.4142" in str(norm)

weights, experts = torch.topk(router(hidden).softmax(-1), 2)
chosen = functional.one_hot(experts, 8).permute(2, 1, 0)
assert [len(torch.where(expert)[0]) for expert in chosen] == [4] * 8

scaler, optimizer = torch.amp.GradScaler("cuda"), torch.optim.AdamW(layer.parameters())
for _ in range(3):
    optimizer.zero_grad()
    with torch.autocast("cuda", torch.float16):
        half = layer(torch.randn(16, 4096, device="cuda")).mean()
    scaler.scale(half).backward()
    scaler.step(optimizer)
    scaler.update()
assert scaler.get_scale() == 65536.0
assert optimizer.state[layer.weight]["step"].item() == 3

# A hook reads its gradient in the backward pass, and not what lay in that memory before.
stale = [torch.full((128,), -1, dtype=torch.int32, device="cuda") for _ in range(1000)]
del stale
found = []
layer.weight.register_hook(lambda gradient: found.append(bool(gradient.isnan().any())))
layer.bias.register_post_accumulate_grad_hook(lambda bias: found.append(bool(bias.grad.isnan().any())))
layer(torch.randn(16, 4096, device="cuda")).mean().backward()
assert found == [False, False]

read: list[float] = []


class Copied(torch.autograd.Function):
    """A copy that reads its gradient."""

    @staticmethod
    def forward(_: Any, hidden: torch.Tensor) -> torch.Tensor:
        return hidden.clone()

    @staticmethod
    def backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:
        read.append(gradient.norm().item())
        return gradient


def look(_module: torch.nn.Module, _inputs: object, outputs: Any) -> None:
    """Read the gradient of a module."""
    read.append(float(outputs[0].norm()))


layer.register_full_backward_hook(look)
Copied.apply(layer(torch.randn(16, 4096, device="cuda"))).mean().backward()  # type: ignore[no-untyped-call]
assert read == [1.0, 1.0]
