"""What a step's operations take, beside numbers that were worked out by hand."""

from __future__ import annotations

import pytest

from memtune.gpus.gpu import find
from memtune.gpus.operations import Operation, step_time

A100 = find("a100-80gb")
H100 = find("h100-80gb")
SECOND = 2039e9 * 0.5  # what kernels move on an A100 in a second


def test_a_large_product_is_bound_by_arithmetic_and_by_the_tiles_that_are_left_over() -> None:
    product = Operation("product", "bf16", 2 * 8192**3, 3 * 2 * 8192**2, 8192, 8192)
    # 2,048 tiles of 256 x 128 on 108 multiprocessors are 19 rounds, of which 18.96 would do.
    waste = 19 * 108 / 2048
    expected = 2 * 8192**3 / (312e12 * 0.869 * 0.88 / waste)
    assert step_time({product: 3}, A100, 8).products == pytest.approx(3 * expected)


def test_a_product_of_few_tiles_leaves_multiprocessors_idle() -> None:
    small = Operation("product", "bf16", 2 * 256 * 256 * 65536, 0, 256, 256)
    # Sixteen tiles of 64 x 64 keep sixteen of 108 busy, at 0.65 of the speed.
    expected = 2 * 256 * 256 * 65536 / (312e12 * 0.869 * 0.88) * 108 / (16 * 0.65)
    assert step_time({small: 1}, A100, 8).products == pytest.approx(expected)


def test_a_product_with_a_vector_is_bound_by_memory() -> None:
    thin = Operation("product", "bf16", 2 * 8192**2, 2 * 8192**2, 1, 8192)
    assert step_time({thin: 1000}, A100, 8).products == pytest.approx(1000 * 2 * 8192**2 / SECOND)


def test_kernels_take_the_time_of_their_bytes_and_copies_that_of_the_host_link() -> None:
    took = step_time({Operation("kernel", "", 0, 10**9): 2, Operation("host", "", 0, 32 * 10**9): 1}, A100, 8)
    assert took.kernels == pytest.approx(2e9 / SECOND)
    assert took.host == pytest.approx(1.0)
    assert took.seconds == pytest.approx(took.kernels + 1.0)


def test_attention_reaches_less_of_the_peak_and_more_with_cudnn_on_hopper() -> None:
    attention = Operation("attention", "bf16", 10**12, 10**9)
    flash, cudnn = (
        step_time({each: 1}, H100, 8).attention for each in (attention, attention._replace(kind="cudnn-attention"))
    )
    assert flash == pytest.approx(1e12 / (989e12 * 0.35))
    assert cudnn == pytest.approx(flash / 1.6)


def test_collectives_of_more_ranks_than_a_node_has_share_its_network() -> None:
    gather = Operation("all-gather", "", 0, 10**9, batch=8)
    assert step_time({gather: 1}, A100, 8).collectives == pytest.approx(1e9 / (300e9 * 0.8))
    assert step_time({gather._replace(batch=64): 1}, A100, 8).collectives == pytest.approx(1e9 / (200e9 * 0.8))
    assert step_time({gather: 1}, A100, 4).collectives == pytest.approx(1e9 / (100e9 * 0.8))
    # One rank of each node, with a link of its own.
    assert step_time({gather._replace(batch=2, stride=8): 1}, A100, 8).collectives == pytest.approx(1e9 / (25e9 * 0.8))


def test_many_small_kernels_take_as_long_as_python_needs_to_launch_them() -> None:
    took = step_time({Operation("kernel", "", 0, 1000): 10_000}, A100, 8)
    assert took.seconds == pytest.approx(10_000 * 5e-6)
    assert took.idle == pytest.approx(took.seconds - took.kernels)


@pytest.mark.parametrize(
    ("precision", "rate"), [("fp8", 1979e12), ("int8", 1979e12), ("tf32", 494.5e12), ("fp32", 67e12)]
)
def test_each_precision_has_its_own_peak(precision: str, rate: float) -> None:
    took = step_time({Operation("product", precision, 10**15, 0): 1}, H100, 8)
    assert took.products == pytest.approx(1e15 / (rate * 0.803 * 0.88))
