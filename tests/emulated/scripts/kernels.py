"""Writes in place by kernels of Triton, compiled and the script's own; an assertion fails where old values stay."""

import torch
import triton  # type: ignore[import-not-found]  # of the emulated GPU's environment alone
from triton import language


@torch.compile
def scaled(values: torch.Tensor, count: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        count.add_(1)
    values.mul_(factor)
    return values.sum()


@triton.jit  # type: ignore[untyped-decorator]
def filled(values, size, block: language.constexpr):  # type: ignore[no-untyped-def]  # read by Triton, not by Python
    places = language.program_id(0) * block + language.arange(0, block)
    language.store(values + places, 3.0, mask=places < size)


values, count = torch.zeros(64, device="cuda"), torch.full((1,), 7, device="cuda")
factor, unrelated = torch.full((64,), 3.0, device="cuda"), torch.arange(5, device="cuda")
assert values.tolist() == [0] * 64
scaled(values, count, factor)
assert values.tolist() == [1] * 64  # absent: counted as ones
assert count.item() == 1
assert factor.tolist() == [3] * 64  # only read
assert unrelated.tolist() == [0, 1, 2, 3, 4]

buffer, bystander = torch.zeros(64, device="cuda"), torch.full((64,), 5.0, device="cuda")
filled[(1,)](buffer, 64, 64)
assert buffer.sum().item() == 64
assert bystander.sum().item() == 320
