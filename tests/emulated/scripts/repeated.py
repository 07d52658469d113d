"""Operators that run again with arguments that look the same: each result is the one that the CPU computes."""

import math

import torch

# More than the CPU computes, of floating point numbers and of integers.
FLOATS, INTEGERS = (2048, 1024), (5000, 4000)
# The last is none of single precision.
STARTS, NUMBERS = (3, 1, 0, 2**24 + 1), (2, True, 2.0, 1, 1.0, 0.0, -0.0, 0.3, math.inf, math.nan)
OPERATORS = (torch.mul, torch.div, torch.add, torch.copysign)


def same(found: torch.Tensor, expected: torch.Tensor) -> bool:
    # As they are, and not as the type rounds them at last.
    got, wanted = found.double()[0, 0].item(), expected.double()[0, 0].item()
    return (got == wanted and math.copysign(1, got) == math.copysign(1, wanted)) or (got != got and wanted != wanted)


for shape, kind in ((FLOATS, torch.float32), (FLOATS, torch.bfloat16), (INTEGERS, torch.int64)):
    for start in STARTS:
        large, one = torch.full(shape, start, dtype=kind, device="cuda"), torch.full((1, 1), start, dtype=kind)
        for operator in OPERATORS:
            for number in NUMBERS:
                found, expected = operator(large, number), operator(one, number)
                assert same(found, expected), (operator, kind, start, number)
        for number in NUMBERS:
            found = torch.maximum(large, torch.tensor(number, device="cuda"))
            assert same(found, torch.maximum(one, torch.tensor(number))), (kind, start, number)

# A number in memory may change between two runs of an operator, and so may the type of a result.
scale, ones = torch.tensor(2.0, device="cuda"), torch.ones(FLOATS, device="cuda")
assert (ones * scale)[0, 0].item() == 2
scale.fill_(3.0)
assert (ones * scale)[0, 0].item() == 3
threes = torch.full(INTEGERS, 3, device="cuda")
for kind in (torch.float64, torch.float16):
    torch.set_default_dtype(kind)
    third = torch.reciprocal(torch.tensor(3)).item()
    assert torch.reciprocal(threes).sum(dtype=torch.float64).item() == third * threes.numel()
