"""What is known of a GPU before anything ran on it: usable memory, arithmetic and links.

Peaks are dense (no sparsity), from the vendor's data sheets, named with each row. Usable bytes are what the driver
gives, which is less than the class name says: ECC and the driver keep a share.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from memtune.units import GIB


@dataclass(frozen=True)
class Gpu:
    """One kind of GPU. Rates are peaks; what a training step reaches of them is the predictor's business."""

    name: str
    usable_bytes: int
    bf16_flops: float
    fp16_flops: float
    tf32_flops: float
    fp32_flops: float
    fp8_flops: float
    memory_bytes_per_second: float
    link_bytes_per_second: float
    node_link_bytes_per_second: float
    host_link_bytes_per_second: float

    def with_memory(self, usable_bytes: int) -> Gpu:
        """The same GPU with another amount of memory: a declared size, a MIG slice, or a measured one."""
        return replace(self, usable_bytes=usable_bytes)


def _gpu(name: str, usable_gib: float, bf16: float, fp32: float, memory: float, link: float, **rates: float) -> Gpu:
    """Rates in TFLOP/s and GB/s, as data sheets give them; between nodes 400 Gbit/s for NVLink machines, else 100."""
    return Gpu(
        name=name,
        usable_bytes=int(usable_gib * GIB),
        bf16_flops=bf16 * 1e12,
        fp16_flops=rates.get("fp16", bf16) * 1e12,
        tf32_flops=rates.get("tf32", bf16 / 2) * 1e12,
        fp32_flops=fp32 * 1e12,
        fp8_flops=rates.get("fp8", bf16) * 1e12,
        memory_bytes_per_second=memory * 1e9,
        link_bytes_per_second=link * 1e9,
        node_link_bytes_per_second=(50 if link >= 300 else 12.5) * 1e9,
        host_link_bytes_per_second=rates.get("host", 32) * 1e9,
    )


# NVIDIA data sheets: H100, H200, A100, L40S, L4, A10, V100, T4, RTX 4090, RTX 3090, RTX A6000.
# Link: NVLink per direction, or PCIe where there is none. A bf16 rate of 0 means: this GPU has no bf16.
GPUS: dict[str, Gpu] = {
    g.name: g
    for g in (
        _gpu("h100-80gb", 79.1, 989, 67, 3350, 450, fp8=1979, host=64),
        _gpu("h100-96gb", 94.5, 989, 67, 2400, 450, fp8=1979, host=64),
        _gpu("h200-141gb", 139.8, 989, 67, 4800, 450, fp8=1979, host=64),
        _gpu("a100-80gb", 79.2, 312, 19.5, 2039, 300),
        _gpu("a100-40gb", 39.4, 312, 19.5, 1555, 300),
        _gpu("l40s-48gb", 44.4, 362, 91.6, 864, 32, fp8=733),
        _gpu("l4-24gb", 22.0, 121, 30.3, 300, 32, fp8=242),
        _gpu("a10-24gb", 22.0, 125, 31.2, 600, 32),
        _gpu("a6000-48gb", 47.5, 155, 38.7, 768, 56),
        _gpu("rtx4090-24gb", 23.5, 165, 82.6, 1008, 32, fp8=330),
        _gpu("rtx3090-24gb", 23.6, 71, 35.6, 936, 56),
        _gpu("v100-32gb", 31.7, 0, 15.7, 900, 150, fp16=125, tf32=15.7),
        _gpu("t4-16gb", 14.6, 0, 8.1, 300, 16, fp16=65, tf32=8.1),
    )
}


def find(name: str) -> Gpu:
    """Look a GPU up by its name here, such as ``h100-80gb``."""
    try:
        return GPUS[name.lower()]
    except KeyError:
        raise ValueError(f"GPU {name!r} is unknown; use one of {', '.join(GPUS)}") from None
