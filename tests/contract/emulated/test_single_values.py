"""The value of a uniform tensor from a creation operator."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from memtune_runner.emulated.known_values import created_value


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
def test_a_created_value_is_what_its_dtype_holds(name: str, args: Any, dtype: torch.dtype, value: float | None) -> None:
    assert created_value(name, args, dtype) == value
