"""The table of GPUs: usable memory, rates, links and chips; and the product names of nodes.

Peaks are dense (no sparsity). A row names the source of its rates; "unchecked" ones were not compared with a
publication. Rates only order plans before anything ran: the first measured step corrects them all. Usable bytes are
what the driver gives a process, which is less than the nominal size: ECC and the driver keep a share. They are the
smallest totals in published out-of-memory messages of torch (``GPU 0 has a total capacity of 79.11 GiB``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from difflib import SequenceMatcher, get_close_matches
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from memtune.units import GIB, KIB


@dataclass(frozen=True)
class Gpu:
    """One kind of GPU. Rates are peaks, of which large matrix products and attention reach a share.

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
    matmul_share: float
    attention_share: float
    guessed: bool = False

    def with_memory(self, usable_bytes: int) -> Gpu:
        """The same GPU with another amount of memory: a declared size, a MIG slice, or a measured one."""
        return replace(self, usable_bytes=usable_bytes)


# The share of its bf16 peak that a GPU reaches. Matrix products: stas00/ml-engineering@744d01e
# compute/accelerator/README.md, "Maximum Achievable Matmul FLOPS". Attention: FlashAttention-2 on an A100, 50% to 73%
# (2307.08691, abstract), and 35% on an H100 (2407.08608, abstract). All Hopper GPUs have an H100's; those without a
# measurement have a value in between.
_AMPERE = {"matmul": 0.869, "attention": 0.62}
_HOPPER = {"matmul": 0.803, "attention": 0.35}
# With 500 W in place of 700, arithmetic is slower by their ratio to the power of 0.24, as on an A100 by PCIe, with 300
# W, beside one with 400 W (81.1% and 86.9% in the same table).
_HOPPER_500_W = {"matmul": 0.741, "attention": 0.323}
_MATMUL_SHARE, _ATTENTION_SHARE = 0.85, 0.47


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
        matmul_share=rates.get("matmul", _MATMUL_SHARE),
        attention_share=rates.get("attention", _ATTENTION_SHARE),
    )


# Link: NVLink per direction, or PCIe without NVLink. Host: PCIe per direction, 16 lanes. A bf16 rate of 0 means no
# bf16. Networks are the usual InfiniBand of a generation: HDR, 200 Gbit/s, for each A100; NDR, 400, for each H100 and
# H200. These, NVLink from V100 to B200 and PCIe: alpha-one-index.github.io/ai-infra-index, networking.
GPUS: dict[str, Gpu] = {
    g.name: g
    for g in (
        # Blackwell Ultra data sheet, HGX B300: half of the rates with sparsity. Unchecked: the network, assumed to be
        # an H100's, and what matrix products reach, a B200's.
        _gpu("b300-270gb", 267.6, 2250, 75, 7700, 900, fp8=4500, host=64, network=50, matmul=0.776),
        # DGX B200 data sheet (rates of eight); bandwidth and usable memory as a device reports: pytorch/ao#4002.
        # Unchecked: the network, assumed to be an H100's.
        _gpu("b200-180gb", 178.3, 2250, 75, 7670, 900, fp8=4500, host=64, network=50, matmul=0.776),
        # H200 data sheet. It is an H100 with HBM3e: 4.8 TB/s. The NVL is by PCIe, for its NVLink bridge joins four
        # cards at most. Unchecked: the fp32 and fp8 rates of the NVL, assumed to be those of an H100 NVL.
        _gpu("h200-141gb", 139.7, 989, 67, 4800, 450, fp8=1979, host=64, network=50, **_HOPPER),
        _gpu("h200-nvl-141gb", 139.7, 835, 60, 4800, 64, fp8=1671, host=64, **_HOPPER),
        # H100 data sheet: SXM, NVL (by PCIe, for its NVLink bridge joins two cards only) and, in early editions, PCIe.
        _gpu("h100-80gb", 79.1, 989, 67, 3350, 450, fp8=1979, host=64, network=50, **_HOPPER),
        _gpu("h100-nvl-94gb", 93.0, 835, 60, 3900, 64, fp8=1671, host=64, **_HOPPER),
        _gpu("h100-pcie-80gb", 79.1, 756, 51, 2000, 64, fp8=1513, host=64, **_HOPPER),
        # An H100 SXM with HBM2e and 500 W: pytorch/torchtitan, benchmarks/llama3_h100_202412_torchtitan.md. Also used
        # for the GPU of a GH200, which has more power, and whose HBM3 is faster.
        _gpu("h100-96gb", 94.5, 989, 67, 2400, 450, fp8=1979, host=64, network=50, **_HOPPER_500_W),
        # A100 data sheet, SXM.
        _gpu("a100-80gb", 79.2, 312, 19.5, 2039, 300, network=25, **_AMPERE),
        _gpu("a100-40gb", 39.38, 312, 19.5, 1555, 300, network=25, **_AMPERE),
        # L40S data sheet.
        _gpu("l40s-48gb", 44.3, 362, 91.6, 864, 32, tf32=183, fp8=733),
        # L4 data sheet; fp32: fpsbench.com, nvidia-l4.
        _gpu("l4-24gb", 22.0, 121, 30.3, 300, 32, tf32=60, fp8=242),
        # A10 data sheet. The A10G of AWS has fewer active tensor cores: half the rate and a little more fp32.
        _gpu("a10-24gb", 22.0, 125, 31.2, 600, 32),
        _gpu("a10g-24gb", 22.0, 70, 35, 600, 32),
        # NVIDIA RTX Blackwell PRO GPU Architecture v1.0, table 4. The Server Edition: its data sheet, and for tensor
        # rates its product page, which rounds them and means sparsity. The memory of the RTX 6000 Ada is that with ECC:
        # DINGYANB/MTVCrafter#21. The NVLink of the RTX A6000 is a bridge of two cards.
        _gpu("rtxpro6000-96gb", 94.9, 503.8, 126, 1792, 64, fp8=1007.6, host=64),
        _gpu("rtxpro6000-maxq-96gb", 94.9, 438.9, 109.7, 1792, 64, fp8=877.9, host=64),
        _gpu("rtxpro6000-server-96gb", 94.9, 500, 120, 1597, 64, fp8=1000, host=64),
        _gpu("rtx6000ada-48gb", 44.4, 364, 91.1, 960, 32, fp8=728.5),
        _gpu("a6000-48gb", 47.4, 154.8, 38.7, 768, 56),
        # NVIDIA RTX Blackwell GPU Architecture, table 3, with fp32 accumulation.
        _gpu("rtx5090-32gb", 31.3, 209.5, 104.8, 1792, 64, fp8=419, host=64),
        # With fp32 accumulation: waredb.com, nvidia-geforce-rtx-4090.
        _gpu("rtx4090-24gb", 23.5, 165, 82.6, 1008, 32, fp8=330),
        # holynerdvana.com, nvidia-geforce-rtx-4080-specifications: tensor rates with sparsity and fp16 accumulation,
        # each of which doubles them. Unchecked: usable memory on Linux, in the RTX 4090's proportion; Windows gives
        # 15.99 GiB (aigc-apps/sd-webui-EasyPhoto#281).
        _gpu("rtx4080-16gb", 15.6, 97.5, 48.7, 717, 32, fp8=195),
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


# NVIDIA's gpu-feature-discovery writes the driver's name with dashes for blanks, such as NVIDIA-H100-80GB-HBM3. If a
# GPU was sold with different memory under one name, the product must say how much: A100 alone is ambiguous.
_PRODUCTS = (
    (r"b300", "b300-270gb"),
    (r"b200", "b200-180gb"),
    (r"h200-nvl", "h200-nvl-141gb"),
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
    (r"rtx-pro-6000.*server-edition", "rtxpro6000-server-96gb"),
    (r"rtx-pro-6000.*max-q-workstation-edition", "rtxpro6000-maxq-96gb"),
    (r"rtx-pro-6000.*workstation-edition|rtx-pro-6000$", "rtxpro6000-96gb"),
    (r"rtx-6000-ada", "rtx6000ada-48gb"),
    (r"rtx-?a6000|a6000", "a6000-48gb"),
    (r"rtx-?5090", "rtx5090-32gb"),
    (r"rtx-?4090", "rtx4090-24gb"),
    # The laptop's has less memory, the SUPER more multiprocessors.
    (r"rtx-?4080(?!-(?:laptop|super))", "rtx4080-16gb"),
    (r"rtx-?3090", "rtx3090-24gb"),
    (r"v100.*32gb", "v100-32gb"),
    (r"v100.*16gb", "v100-16gb"),
    (r"t4", "t4-16gb"),
)

# A slice is named by its sevenths of the arithmetic, quarters on an RTX PRO 6000, and its gigabytes, as in mig-1g.10gb,
# of which at least this much is usable: 4.75 GiB of a 1g.5gb (NVIDIA MIG user guide, GPU instance profiles).
_PROFILE = re.compile(r"mig-(\d)g\.(\d+)gb")

_PARTS, _PARTS_OF_RTX_PRO = 7, 4

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
    part = int(found[1]) / (_PARTS_OF_RTX_PRO if gpu.name.startswith("rtxpro6000") else _PARTS)
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
    alike = [name for name, score in scores.items() if score > _ALIKE]
    return sorted(alike, key=lambda name: -scores[name])[:_MOST_ALIKE]


def _alikeness(word: str, name: str) -> float:
    # Too many names end with the same memory size.
    return SequenceMatcher(None, word, name.partition("-")[0]).ratio()


def _on_pcie(gpu: Gpu) -> Gpu:
    """The PCIe card of a module: the same chip, but only PCIe between GPUs."""
    slowest = min(gpu.link_bytes_per_second, gpu.host_link_bytes_per_second)
    return replace(gpu, link_bytes_per_second=slowest)


@lru_cache(256)
def nearest(usable_bytes: int) -> Gpu:
    """A guess: the GPU of the table with the nearest memory. Those without bf16 are too old to guess."""
    candidates = [gpu for gpu in GPUS.values() if gpu.bf16_flops]
    # Among equals the slower one, so that a guess never promises too much.
    guess = min(candidates, key=lambda gpu: (round(abs(gpu.usable_bytes - usable_bytes) / GIB), gpu.bf16_flops))
    return replace(guess, guessed=True)


class Chip(NamedTuple):
    """The device properties that CUDA reports, by which torch chooses kernels and their workspaces.

    Shared memory is that of one multiprocessor, or of one block.
    """

    product: str
    major: int
    minor: int
    multiprocessors: int
    threads_per_multiprocessor: int
    blocks_per_multiprocessor: int
    shared_bytes_per_multiprocessor: int
    shared_bytes_per_block: int
    shared_bytes_reserved: int


# Capabilities: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability". Multiprocessors: NVIDIA's
# architecture whitepapers (Volta, Turing, Ampere GA100 and GA102, Ada, Hopper, Blackwell) and the data sheets of the
# cards; the B300's as it reports them. Product names are the driver's, as `nvidia-smi` prints them.
# Threads and blocks of a multiprocessor; KiB of shared memory: per multiprocessor, at most per block, reserved.
_CAPABILITIES = {
    (7, 0): (2048, 32, 96, 96, 0),
    (7, 5): (1024, 16, 64, 64, 0),
    (8, 0): (2048, 32, 164, 163, 1),
    (8, 6): (1536, 16, 100, 99, 1),
    (8, 9): (1536, 24, 100, 99, 1),
    (9, 0): (2048, 32, 228, 227, 1),
    (10, 0): (2048, 32, 228, 227, 1),
    (10, 3): (2048, 32, 228, 227, 1),
    (12, 0): (1536, 24, 100, 99, 1),
}

_CHIPS = {
    "b300-270gb": ("NVIDIA B300 SXM6 AC", (10, 3), 148),
    "b200-180gb": ("NVIDIA B200", (10, 0), 148),
    "h200-141gb": ("NVIDIA H200", (9, 0), 132),
    "h200-nvl-141gb": ("NVIDIA H200 NVL", (9, 0), 132),
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
    "rtxpro6000-96gb": ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", (12, 0), 188),
    "rtxpro6000-maxq-96gb": ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", (12, 0), 188),
    "rtxpro6000-server-96gb": ("NVIDIA RTX PRO 6000 Blackwell Server Edition", (12, 0), 188),
    "rtx6000ada-48gb": ("NVIDIA RTX 6000 Ada Generation", (8, 9), 142),
    "a6000-48gb": ("NVIDIA RTX A6000", (8, 6), 84),
    "rtx5090-32gb": ("NVIDIA GeForce RTX 5090", (12, 0), 170),
    "rtx4090-24gb": ("NVIDIA GeForce RTX 4090", (8, 9), 128),
    "rtx4080-16gb": ("NVIDIA GeForce RTX 4080", (8, 9), 76),
    "rtx3090-24gb": ("NVIDIA GeForce RTX 3090", (8, 6), 82),
    "v100-32gb": ("Tesla V100-SXM2-32GB", (7, 0), 80),
    "v100-16gb": ("Tesla V100-SXM2-16GB", (7, 0), 80),
    "t4-16gb": ("Tesla T4", (7, 5), 40),
}


def chip_of(name: str) -> Chip:
    """The chip of a GPU by its name in the table of GPUs, such as ``h100-80gb``."""
    product, (major, minor), multiprocessors = _CHIPS[name.lower()]
    threads, blocks, *shared = _CAPABILITIES[major, minor]
    return Chip(product, major, minor, multiprocessors, threads, blocks, *(size * KIB for size in shared))
