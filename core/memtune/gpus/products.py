"""Maps the product names of the node label `nvidia.com/gpu.product` to the table of GPUs."""

from __future__ import annotations

import re
from dataclasses import replace
from difflib import SequenceMatcher
from itertools import pairwise

from memtune.gpus.gpu import GPUS, Gpu
from memtune.units import GIB

# NVIDIA's gpu-feature-discovery writes the driver's name with dashes for blanks, such as NVIDIA-H100-80GB-HBM3. If a
# GPU was sold with different memory under one name, the product must say how much: A100 alone is ambiguous.
_PRODUCTS = (
    (r"b200", "b200-180gb"),
    (r"h200", "h200-141gb"),
    (r"h100-nvl", "h100-nvl-94gb"),
    (r"h100-pcie", "h100-pcie-80gb"),
    (r"h100.*96gb|gh200", "h100-96gb"),
    (r"h100", "h100-80gb"),
    (r"a100.*80gb", "a100-80gb"),
    (r"a100.*-40gb", "a100-40gb"),
    (r"l40s", "l40s-48gb"),
    (r"l4", "l4-24gb"),
    (r"a10g", "a10g-24gb"),
    (r"a10", "a10-24gb"),
    (r"rtx-?a6000|a6000", "a6000-48gb"),
    (r"rtx-?4090", "rtx4090-24gb"),
    (r"rtx-?3090", "rtx3090-24gb"),
    (r"v100.*32gb", "v100-32gb"),
    (r"v100.*16gb", "v100-16gb"),
    (r"t4", "t4-16gb"),
)
# A slice is named by its sevenths of the arithmetic and its gigabytes, as in mig-1g.10gb, of which at least this much
# is usable: 4.75 GiB of a 1g.5gb (NVIDIA MIG user guide, GPU instance profiles).
_PROFILE = re.compile(r"mig-(\d)g\.(\d+)gb")
_PARTS = 7
_ARITHMETIC = ("bf16_flops", "fp16_flops", "tf32_flops", "fp32_flops", "fp8_flops")
_SLICE_USABLE = 0.95
_ALIKE = 0.6
_MOST_ALIKE = 3


def of_product(product: str) -> Gpu | None:
    """The GPU of a product label or of a name in the table; None if unknown."""
    name = product.lower()
    if name in GPUS:
        return GPUS[name]
    for pattern, known in _PRODUCTS:
        if re.search(rf"(^|-)({pattern})($|-)", name):
            gpu = _on_pcie(GPUS[known]) if re.search(r"-pcie($|-)", name) else GPUS[known]
            return slice_of(gpu, name)
    return None


def slice_of(gpu: Gpu, name: str) -> Gpu:
    """The MIG slice of a GPU that a product or a resource names; the GPU itself if none is named, or if it is one."""
    size_bytes = slice_bytes(name)
    found = _PROFILE.search(name.lower())
    if found is None or size_bytes >= gpu.usable_bytes:
        return gpu
    part = int(found[1]) / _PARTS
    rates = {rate: getattr(gpu, rate) * part for rate in _ARITHMETIC}
    bandwidth = gpu.memory_bytes_per_second * size_bytes / gpu.usable_bytes
    return replace(gpu, usable_bytes=size_bytes, memory_bytes_per_second=bandwidth, **rates)


def slice_bytes(name: str) -> int:
    """The memory of the MIG slice that a product or a resource names; 0 if it names none."""
    found = _PROFILE.search(name.lower())
    return int(int(found[2]) * GIB * _SLICE_USABLE) if found else 0


def closest(product: str) -> list[str]:
    """Names in the table that look like an unknown product, the most similar first."""
    words = [word for word in re.split(r"[^a-z0-9]+", product.lower()) if word]
    words += [first + second for first, second in pairwise(words)]
    scores = {name: max(_alikeness(word, name) for word in words) for name in GPUS} if words else {}
    alike = [name for name, score in scores.items() if score >= _ALIKE]
    return sorted(alike, key=lambda name: -scores[name])[:_MOST_ALIKE]


def _alikeness(word: str, name: str) -> float:
    # Too many names end with the same memory size.
    return SequenceMatcher(None, word, name.partition("-")[0]).ratio()


def _on_pcie(gpu: Gpu) -> Gpu:
    """The PCIe card of a module: the same chip, but only PCIe between GPUs."""
    slowest = min(gpu.link_bytes_per_second, gpu.host_link_bytes_per_second)
    return replace(gpu, link_bytes_per_second=slowest)


def nearest(usable_bytes: int) -> Gpu:
    """A guess: the GPU of the table with the nearest memory. Those without bf16 are too old to guess."""
    candidates = [gpu for gpu in GPUS.values() if gpu.bf16_flops]
    # Among equals the slower one, so that a guess never promises too much.
    guess = min(candidates, key=lambda gpu: (round(abs(gpu.usable_bytes - usable_bytes) / GIB), gpu.bf16_flops))
    return replace(guess, guessed=True)
