"""Which GPU kernel computes attention, traced without a GPU: torch 2.13's sdp_utils.cpp, rule by rule."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from memtune.wire import trace as events
from memtune.wire.trace import Program
from memtune_runner.tracing import trace_subject
from memtune_runner.tracing.factory import Subject
from memtune_runner.tracing.kernels import gpu_kernels

BATCH, HEADS, PLACES, WIDTH = 2, 8, 16, 64
SHAPE = (BATCH, HEADS, PLACES, WIDTH)
HALF, FULL = torch.bfloat16, torch.float32
NO_KERNEL, BOTH, FLASH, EFFICIENT = "", "flash efficient", "flash", "efficient"
KERNELS = {FLASH: SDPBackend.FLASH_ATTENTION, EFFICIENT: SDPBackend.EFFICIENT_ATTENTION}


def takers(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any) -> str:
    """Return the kernels that accept it, each queried alone."""
    taken = []
    for kernel, backend in KERNELS.items():

        @contextmanager
        def attending(name: str = kernel) -> Iterator[None]:
            taken.append(name)
            yield

        with sdpa_kernel([backend, SDPBackend.MATH]), gpu_kernels(attending):
            functional.scaled_dot_product_attention(query, key, value, **options)
    return " ".join(taken)


def alike(dtype: torch.dtype, *shape: int) -> list[torch.Tensor]:
    return [torch.zeros(shape or SHAPE, dtype=dtype) for _ in range(3)]


def beside(query: tuple[int, ...], key: tuple[int, ...], value: tuple[int, ...]) -> list[torch.Tensor]:
    return [torch.zeros(shape, dtype=HALF) for shape in (query, key, value)]


def other(heads: int = HEADS, places: int = PLACES, width: int = WIDTH, batch: int = BATCH) -> tuple[int, ...]:
    return batch, heads, places, width


@pytest.mark.parametrize(
    ("dtype", "taken"), [(HALF, BOTH), (torch.float16, BOTH), (FULL, EFFICIENT), (torch.float64, NO_KERNEL)]
)
def test_flash_computes_in_16_bits_only(dtype: torch.dtype, taken: str) -> None:
    with FakeTensorMode():
        assert takers(*alike(dtype)) == taken


@pytest.mark.parametrize("dtype", [HALF, FULL])
@pytest.mark.parametrize("shape", [(PLACES, PLACES), (BATCH, 1, 1, PLACES), (BATCH, HEADS, PLACES, PLACES)])
def test_flash_takes_no_mask(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    with FakeTensorMode():
        assert takers(*alike(dtype), attn_mask=torch.zeros(shape, dtype=dtype)) == EFFICIENT
        assert takers(*alike(dtype), attn_mask=torch.zeros(shape, dtype=torch.bool)) == EFFICIENT


@pytest.mark.parametrize(
    ("dtype", "heads", "masked", "taken"),
    [
        (HALF, 2, False, FLASH),
        (FULL, 2, False, NO_KERNEL),
        (HALF, 2, True, NO_KERNEL),
        (HALF, HEADS, False, BOTH),  # shared by one each, so not shared
        (HALF, HEADS, True, EFFICIENT),
    ],
)
def test_flash_alone_takes_shared_heads(dtype: torch.dtype, heads: int, masked: bool, taken: str) -> None:
    with FakeTensorMode():
        query, key, value = alike(dtype)
        mask = torch.zeros(PLACES, PLACES, dtype=dtype) if masked else None
        assert takers(query, key[:, :heads], value[:, :heads], attn_mask=mask, enable_gqa=True) == taken


@pytest.mark.parametrize(
    ("key", "value", "options", "taken"),
    [
        (other(heads=1), other(heads=1), {}, NO_KERNEL),
        (other(heads=2), other(heads=4), {"enable_gqa": True}, NO_KERNEL),
        (other(batch=1), other(batch=1), {}, NO_KERNEL),
        (other(places=32), other(places=32), {}, BOTH),
        (other(places=32), other(places=32), {"is_causal": True}, EFFICIENT),
        (other(), other(), {"is_causal": True}, BOTH),
        (other(), other(width=32), {}, EFFICIENT),
        (other(), other(width=36), {}, NO_KERNEL),
    ],
)
def test_flash_refuses_keys_and_values_of_another_shape(
    key: tuple[int, ...], value: tuple[int, ...], options: dict[str, Any], taken: str
) -> None:
    with FakeTensorMode():
        assert takers(*beside(SHAPE, key, value), **options) == taken


@pytest.mark.parametrize(
    ("dtype", "width", "taken"),
    [
        (HALF, 256, BOTH),
        (HALF, 320, EFFICIENT),
        (HALF, 20, FLASH),
        (HALF, 324, NO_KERNEL),
        (FULL, 20, EFFICIENT),
        (FULL, 18, NO_KERNEL),
    ],
)
def test_heads_of_another_width(dtype: torch.dtype, width: int, taken: str) -> None:
    with FakeTensorMode():
        assert takers(*alike(dtype, *other(width=width))) == taken


def test_the_last_dimension_must_be_dense() -> None:
    with FakeTensorMode():
        query, key, value = alike(HALF)
        assert takers(query, torch.zeros(*other(places=WIDTH, width=PLACES), dtype=HALF).mT, value) == NO_KERNEL
        one_for_all = torch.zeros(PLACES, 1, dtype=torch.bool).expand(PLACES, PLACES)
        assert takers(query, key, value, attn_mask=one_for_all) == NO_KERNEL


@pytest.mark.parametrize("shape", [(HEADS, PLACES, WIDTH), (1, *SHAPE)])
def test_attention_has_four_dimensions(shape: tuple[int, ...]) -> None:
    with FakeTensorMode():
        assert takers(*alike(HALF, *shape)) == NO_KERNEL


class Attending(nn.Module):
    """Eight heads, of which pairs share keys and values."""

    def forward(self, query: torch.Tensor) -> torch.Tensor:
        heads = query.unflatten(-1, (HEADS, -1)).transpose(1, 2)
        few = heads[:, ::2]
        return functional.scaled_dot_product_attention(heads, few, few, is_causal=True, enable_gqa=True).sum()


def program_of(numerics: str, width: int) -> Program:
    def batch(rows: int) -> torch.Tensor:
        return torch.zeros(rows, PLACES, HEADS * width, requires_grad=True)

    with FakeTensorMode(allow_non_fake_inputs=True):
        subject = Subject(Attending(), batch, lambda built, inputs: built(inputs))
        return trace_subject(subject, 2, PLACES, [numerics]).program(numerics)


def saved(program: Program) -> set[int]:
    sizes = program.sizes(1)
    return {sizes[number] for code, number in zip(program.codes, program.numbers, strict=True) if code == events.SAVE}


def test_flash_keeps_inputs_output_and_a_number_for_each_head_and_position() -> None:
    program = program_of("half", 16)
    # Query and output; keys and values lie within the query here; an fp32 logsumexp per head and place.
    assert {PLACES * HEADS * 16 * 2, HEADS * PLACES * 4} <= saved(program)
    assert program.made_by.count(events.ATTENTION) == 3
    # Backward: the query's gradient in fp32 over 128 places, and 32 in place of 16 elements a head.
    assert 128 * HEADS * 32 * 4 in program.sizes(1)


def test_shared_heads_in_32_bits_make_the_scores_of_all_heads() -> None:
    program = program_of("full", 16)
    assert events.ATTENTION not in program.made_by
    assert HEADS * PLACES * PLACES * 4 in saved(program)
    # Keys and values are repeated for the heads that share them.
    assert program.sizes(1).count(PLACES * HEADS * 16 * 4) > program_of("half", 16).sizes(1).count(PLACES * HEADS * 32)


def test_flash_keeps_heads_of_an_odd_width_padded() -> None:
    assert {PLACES * HEADS * 24 * 2, PLACES * HEADS // 2 * 24 * 2} <= saved(program_of("half", 20))
