"""The table of GPUs: usable memory, arithmetic rates and links.

Peaks are dense (no sparsity). A row names the source of its rates; "unchecked" ones were not compared with a
publication. Rates only order plans before anything ran: the first measured step corrects them all. Usable bytes are
what the driver gives a process, which is less than the nominal size: ECC and the driver keep a share. They are the
smallest totals in published out-of-memory messages of torch (``GPU 0 has a total capacity of 79.11 GiB``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from difflib import get_close_matches

from memtune.units import GIB


@dataclass(frozen=True)
class Gpu:
    """One kind of GPU. Rates are peaks; the predictor decides what a training step reaches of them.

    ``guessed`` says that only its memory is known, and that ``name`` is the GPU whose rates it was given.
    """

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
    guessed: bool = False

    def with_memory(self, usable_bytes: int) -> Gpu:
        """The same GPU with another amount of memory: a declared size, a MIG slice, or a measured one."""
        return replace(self, usable_bytes=usable_bytes)


def _gpu(name: str, usable_gib: float, bf16: float, fp32: float, memory: float, link: float, **rates: float) -> Gpu:
    """Rates in TFLOP/s and GB/s. The default network is 25 Gbit/s per GPU: a guess at an ordinary cluster."""
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
        node_link_bytes_per_second=rates.get("network", 3.125) * 1e9,
        host_link_bytes_per_second=rates.get("host", 32) * 1e9,
    )


# Link: NVLink per direction, or PCIe without NVLink. Host: PCIe per direction, 16 lanes. A bf16 rate of 0 means no
# bf16. Networks are the usual InfiniBand of a generation: HDR, 200 Gbit/s, for each A100; NDR, 400, for each H100 and
# H200. These, NVLink from V100 to B200 and PCIe: alpha-one-index.github.io/ai-infra-index, networking.
GPUS: dict[str, Gpu] = {
    g.name: g
    for g in (
        # DGX B200 data sheet (rates of eight); bandwidth and usable memory as a device reports: pytorch/ao#4002.
        # Unchecked: the network, assumed to be an H100's.
        _gpu("b200-180gb", 178.3, 2250, 75, 7670, 900, fp8=4500, host=64, network=50),
        # H200 data sheet. It is an H100 with HBM3e: 4.8 TB/s.
        _gpu("h200-141gb", 139.7, 989, 67, 4800, 450, fp8=1979, host=64, network=50),
        # H100 data sheet: SXM, NVL (by PCIe, for its NVLink bridge joins two cards only) and, in early editions, PCIe.
        # Unchecked: the rates and the bandwidth of the NVL.
        _gpu("h100-80gb", 79.1, 989, 67, 3350, 450, fp8=1979, host=64, network=50),
        _gpu("h100-nvl-94gb", 93.0, 835, 60, 3900, 64, fp8=1671, host=64),
        _gpu("h100-pcie-80gb", 79.1, 756, 51, 2000, 64, fp8=1513, host=64),
        # An H100 SXM with HBM2e: pytorch/torchtitan, benchmarks/llama3_h100_202412_torchtitan.md. Also used for the GPU
        # of a GH200, whose HBM3 is faster.
        _gpu("h100-96gb", 94.5, 989, 67, 2400, 450, fp8=1979, host=64, network=50),
        # A100 data sheet, SXM.
        _gpu("a100-80gb", 79.2, 312, 19.5, 2039, 300, network=25),
        _gpu("a100-40gb", 39.38, 312, 19.5, 1555, 300, network=25),
        # L40S data sheet.
        _gpu("l40s-48gb", 44.3, 362, 91.6, 864, 32, tf32=183, fp8=733),
        # L4 data sheet; fp32: fpsbench.com, nvidia-l4.
        _gpu("l4-24gb", 22.0, 121, 30.3, 300, 32, tf32=60, fp8=242),
        # A10 data sheet. The A10G of AWS has fewer active tensor cores: half the rate and a little more fp32.
        _gpu("a10-24gb", 22.0, 125, 31.2, 600, 32),
        _gpu("a10g-24gb", 22.0, 70, 35, 600, 32),
        # Unchecked: the rates of the RTX A6000. NVLink is a bridge of two cards.
        _gpu("a6000-48gb", 47.4, 155, 38.7, 768, 56),
        # With fp32 accumulation: waredb.com, nvidia-geforce-rtx-4090.
        _gpu("rtx4090-24gb", 23.5, 165, 82.6, 1008, 32, fp8=330),
        # fp32 and bandwidth: gpu.spicedreamphone.com, a40-pcie-vs-geforce-rtx-3090. Unchecked: the bf16 rate, assumed
        # to be twice the fp32 rate, as fp32 accumulation makes it on this chip.
        _gpu("rtx3090-24gb", 23.5, 71, 35.6, 936, 56),
        # V100 data sheet, SXM2, and T4 data sheet; both are on PCIe 3.
        _gpu("v100-32gb", 31.7, 0, 15.7, 900, 150, fp16=125, tf32=15.7, host=16),
        _gpu("v100-16gb", 15.75, 0, 15.7, 900, 150, fp16=125, tf32=15.7, host=16),
        _gpu("t4-16gb", 14.5, 0, 8.1, 320, 16, fp16=65, tf32=8.1, host=16),
    )
}


def find(name: str) -> Gpu:
    """Look up a GPU by its name in the table, such as ``h100-80gb``."""
    try:
        return GPUS[name.lower()]
    except KeyError:
        near = get_close_matches(name.lower(), GPUS, n=3)
        meant = f"; did you mean {' or '.join(near)}?" if near else ""
        raise ValueError(f"GPU {name!r} is unknown; use one of {', '.join(GPUS)}{meant}") from None
