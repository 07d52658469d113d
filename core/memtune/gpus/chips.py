"""Chip properties of a GPU, by which torch chooses kernels and their workspaces.

Properties by compute capability: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
Multiprocessors: NVIDIA's architecture whitepapers (Volta, Turing, Ampere GA100 and GA102, Ada, Hopper, Blackwell) and
the data sheets of the cards. Product names are the driver's, as `nvidia-smi` prints them.
"""

from __future__ import annotations

from typing import NamedTuple

from memtune.units import KIB


class Chip(NamedTuple):
    """The device properties that CUDA reports. Shared memory is that of one multiprocessor, or of one block."""

    product: str
    major: int
    minor: int
    multiprocessors: int
    threads_per_multiprocessor: int
    blocks_per_multiprocessor: int
    shared_bytes_per_multiprocessor: int
    shared_bytes_per_block: int
    shared_bytes_reserved: int


# Threads and blocks of a multiprocessor; KiB of shared memory: per multiprocessor, at most per block, reserved.
_CAPABILITIES = {
    (7, 0): (2048, 32, 96, 96, 0),
    (7, 5): (1024, 16, 64, 64, 0),
    (8, 0): (2048, 32, 164, 163, 1),
    (8, 6): (1536, 16, 100, 99, 1),
    (8, 9): (1536, 24, 100, 99, 1),
    (9, 0): (2048, 32, 228, 227, 1),
    (10, 0): (2048, 32, 228, 227, 1),
}
_PRODUCTS = {
    "b200-180gb": ("NVIDIA B200", (10, 0), 148),
    "h200-141gb": ("NVIDIA H200", (9, 0), 132),
    "h100-80gb": ("NVIDIA H100 80GB HBM3", (9, 0), 132),
    "h100-nvl-94gb": ("NVIDIA H100 NVL", (9, 0), 132),
    "h100-pcie-80gb": ("NVIDIA H100 PCIe", (9, 0), 114),
    "h100-96gb": ("NVIDIA H100", (9, 0), 132),
    "a100-80gb": ("NVIDIA A100-SXM4-80GB", (8, 0), 108),
    "a100-40gb": ("NVIDIA A100-SXM4-40GB", (8, 0), 108),
    "l40s-48gb": ("NVIDIA L40S", (8, 9), 142),
    "l4-24gb": ("NVIDIA L4", (8, 9), 58),
    "a10-24gb": ("NVIDIA A10", (8, 6), 72),
    "a10g-24gb": ("NVIDIA A10G", (8, 6), 80),
    "a6000-48gb": ("NVIDIA RTX A6000", (8, 6), 84),
    "rtx4090-24gb": ("NVIDIA GeForce RTX 4090", (8, 9), 128),
    "rtx3090-24gb": ("NVIDIA GeForce RTX 3090", (8, 6), 82),
    "v100-32gb": ("Tesla V100-SXM2-32GB", (7, 0), 80),
    "v100-16gb": ("Tesla V100-SXM2-16GB", (7, 0), 80),
    "t4-16gb": ("Tesla T4", (7, 5), 40),
}


def chip_of(name: str) -> Chip:
    """The chip of a GPU by its name in the table of GPUs, such as ``h100-80gb``."""
    product, (major, minor), multiprocessors = _PRODUCTS[name.lower()]
    threads, blocks, *shared = _CAPABILITIES[major, minor]
    return Chip(product, major, minor, multiprocessors, threads, blocks, *(size * KIB for size in shared))
