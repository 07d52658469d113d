"""The operations of a training step, and how long a GPU takes for them.

A kernel is bound by arithmetic or by memory (the roofline model: Williams, Waterman and Patterson, 2009): it takes the
longer of its floating-point operations at what the GPU reaches of its peak, and its bytes at the memory's bandwidth.
bench/emulated_steps.py compares with published throughputs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from memtune.gpus.gpu import Gpu, chip_of

# Chosen with the four sources of bench/data/measured_throughput.csv in view: the speed of a training's products
# relative to the fastest that were measured one at a time, the share of the memory's bandwidth that kernels between
# them reach, and that collectives take time of their own, although they run beside the computation.
# bench/results/throughput.md says what comes out where they are chosen without one of the sources.
_PRODUCT_SHARE = 0.88
_MEMORY_SHARE = 0.5
# The share of a link's bandwidth that collectives reach.
LINK_SHARE = 0.8
# From the launch of a kernel to that of the next.
LAUNCH_SECONDS = 5e-6
# How much faster than FlashAttention-2 cuDNN's attention is taken to be on Hopper GPUs: near the lower end of what
# FlashAttention-3 is there, 1.5 to 2.0 times as fast (2407.08608, abstract).
_CUDNN_ATTENTION = 1.6
# Rows and columns of the tiles into which a product is divided, one for each multiprocessor at a time, and how fast
# smaller ones are beside the largest.
_TILES = ((256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.95), (128, 64, 0.8), (64, 128, 0.8), (64, 64, 0.65))


class Operation(NamedTuple):
    """An operation without its operands.

    ``kind`` is ``product``, ``attention``, ``cudnn-attention``, ``kernel`` for any other, ``host`` for a copy to or
    from the host, or a collective: ``all-gather``, ``reduce-scatter``, ``all-reduce``, ``broadcast``, ``all-to-all``.
    ``moved`` are the bytes that it reads and writes, or sends. ``rows`` and ``columns`` are those of a product, in each
    of a ``batch``; of a collective, ``batch`` has the ranks, of which each is ``stride`` behind the one before.
    """

    kind: str
    precision: str
    flops: int
    moved: int
    rows: int = 0
    columns: int = 0
    batch: int = 1
    stride: int = 1


class StepTime(NamedTuple):
    """Seconds of a step by what takes them. ``idle`` are those in which the GPU waits for Python to launch a kernel."""

    products: float
    attention: float
    kernels: float
    idle: float
    host: float
    collectives: float

    @property
    def seconds(self) -> float:
        """Of the whole step."""
        return sum(self)


def step_time(operations: Mapping[Operation, float], gpu: Gpu, gpus_per_node: int) -> StepTime:
    """How long a step takes on a GPU, given each of its operations with how often it occurs."""
    took = dict.fromkeys(("products", "attention", "kernels", "host", "collectives"), 0.0)
    for operation, times in operations.items():
        part, seconds = _timed(operation, gpu, gpus_per_node)
        took[part] += times * seconds
    busy = took["products"] + took["attention"] + took["kernels"]
    idle = max(LAUNCH_SECONDS * sum(operations.values()) - busy, 0.0)
    return StepTime(**took, idle=idle)


def _timed(operation: Operation, gpu: Gpu, gpus_per_node: int) -> tuple[str, float]:
    """The category of an operation's time, and its seconds."""
    memory = operation.moved / (gpu.memory_bytes_per_second * _MEMORY_SHARE)
    if operation.kind == "host":
        return "host", operation.moved / gpu.host_link_bytes_per_second
    if operation.kind == "kernel":
        return "kernels", memory
    if operation.kind == "product":
        share = gpu.matmul_share * _PRODUCT_SHARE / _waves(operation, chip_of(gpu.name).multiprocessors)
        return "products", max(operation.flops / (_peak(gpu, operation.precision) * share), memory)
    if operation.kind.endswith("attention"):
        share = gpu.attention_share * (_CUDNN_ATTENTION if operation.kind.startswith("cudnn") else 1.0)
        return "attention", operation.flops / (_peak(gpu, operation.precision) * share)
    link = gpu.link_bytes_per_second
    if (operation.batch - 1) * operation.stride >= gpus_per_node:
        # The ranks of the group in a node use its links together, as other groups do at the same time.
        link = min(link, gpu.node_link_bytes_per_second * max(gpus_per_node // operation.stride, 1))
    return "collectives", operation.moved / (link * LINK_SHARE)


def _peak(gpu: Gpu, precision: str) -> float:
    found: float = getattr(gpu, f"{precision}_flops", 0.0)
    # A GPU without it falls back to fp32; 8-bit integers are as fast as fp8.
    return found or (gpu.fp8_flops if precision == "int8" else gpu.fp32_flops)


def _waves(product: Operation, multiprocessors: int) -> float:
    """By how much a product takes longer because the last of its tiles leave multiprocessors without one."""
    if not product.rows:
        return 1.0
    ideal = product.rows * product.columns * product.batch
    return min(
        math.ceil(tiles / multiprocessors) * multiprocessors * height * width / (rate * ideal)
        for height, width, rate in _TILES
        for tiles in [math.ceil(product.rows / height) * math.ceil(product.columns / width) * product.batch]
    )
