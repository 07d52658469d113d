"""The value of a uniform tensor from a creation operator, and in another type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from memtune_runner.emulated.known_values import created_value, repeated_as


@pytest.mark.parametrize(
    ("name", "args", "dtype", "value"),
    [
        ("full", ((4,), 2.7), torch.int64, 2.0),
        ("full", ((4,), 5), torch.bool, 1.0),
        ("new_full", (None, (4,), -2.7), torch.int32, -2.0),
        ("full", ((4,), 0.1), torch.bfloat16, 0.10009765625),
        ("full", ((4,), 2.5), torch.float32, 2.5),
        ("zeros", ((4,),), torch.bool, 0.0),
        ("new_ones", (None, (4,)), torch.int64, 1.0),
        ("add", (None, None), torch.float32, None),
    ],
)
def test_a_created_value_is_rounded_to_its_dtype(name: str, args: Any, dtype: torch.dtype, value: float | None) -> None:
    assert created_value(name, args, dtype) == value


@pytest.mark.parametrize(
    ("kind", "fill"), [(torch.uint8, 63), (torch.bfloat16, -1.5), (torch.float32, -1.5), (torch.complex64, -1.5)]
)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.int32, torch.complex128])
@pytest.mark.parametrize(
    "view",
    [
        lambda whole: whole,
        lambda whole: whole[1:],
        lambda whole: whole[3],
        lambda whole: whole[:0],
        lambda whole: whole[1::3],
        lambda whole: whole.view(4, -1).t()[1:, 2:],
        lambda whole: whole.view(4, -1)[:, None, 1].expand(4, 5),
    ],
)
def test_a_value_in_another_type_is_bytes_of_it(
    kind: torch.dtype, fill: float, dtype: torch.dtype, view: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    whole = torch.full((512 // kind.itemsize,), fill, dtype=kind)
    expected = view(whole.view(dtype))
    found = repeated_as(expected, fill, kind)
    assert (found.dtype, found.shape) == (dtype, expected.shape)
    assert found.contiguous().numpy().tobytes() == expected.contiguous().numpy().tobytes()


def test_a_view_of_a_large_memory_takes_no_more_than_its_elements() -> None:
    rows = torch.ones(4, 1, dtype=torch.bfloat16).expand(4, 1 << 20).contiguous().view(torch.uint8)
    assert repeated_as(rows[:, 1], 1.0, torch.bfloat16).untyped_storage().nbytes() <= 4
