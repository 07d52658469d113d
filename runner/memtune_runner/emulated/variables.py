"""The environment variables that make a process see the emulated GPU."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from memtune.gpus.driver_overhead import CONTEXT_BYTES, expected_overhead
from memtune.gpus.gpu import Chip, Gpu, chip_of, find, of_product, slice_bytes
from memtune.wire import environment
from memtune_runner.emulated.build import LIBRARY, build
from memtune_runner.emulated.errors import EmulationError, UnknownGpuError
from memtune_runner.emulated.installed_torch import InstalledTorch
from memtune_runner.emulated.rank_count import MOST_GPUS


def known_gpu(name: str) -> Gpu:
    """Return the GPU of this name from the table, or the slice that a product label names, or raise UnknownGpuError."""
    try:
        return (of_product(name) if slice_bytes(name) else None) or find(name)
    except ValueError as error:
        raise UnknownGpuError(str(error)) from None


def outside_bytes(ranks: int) -> dict[str, int]:
    """Return the memory kept free for what lies outside torch's allocator, by component."""
    return {name: int(size) for name, size in expected_overhead(ranks).items()}


def variables(gpu: Gpu, ranks: int, gpus: int, torch: InstalledTorch) -> dict[str, str]:
    """Return the variables of a process on a node of ``gpus`` such GPUs; the library is built if necessary."""
    library = build(torch.directory, torch.torch, torch.cuda)
    outside = sum(outside_bytes(ranks).values())
    return {
        **_preloading(library),
        environment.EMULATED_GPU: gpu_variable(chip_of(gpu.name), gpu.usable_bytes, outside, gpus, torch),
        environment.EMULATED_PROCESSES: f"/proc/{os.getpid()}/fd/{unnamed_file()}",
        # NCCL's watchdogs would wait for ranks that do not exist.
        "TORCH_NCCL_ENABLE_MONITORING": "0",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    }


def unnamed_file() -> int:
    """Return the descriptor of a file that lasts as long as this process."""
    if hasattr(os, "memfd_create"):  # a Python that was built for an old C library has it not
        return os.memfd_create("emulated-processes")
    descriptor, path = tempfile.mkstemp()
    Path(path).unlink()
    return descriptor


def gpu_variable(chip: Chip, usable_bytes: int, outside_bytes: int, gpus: int, torch: InstalledTorch) -> str:
    """Return the description of the GPU for the emulation in C."""
    if gpus > MOST_GPUS:
        raise EmulationError(f"torch knows no more than {MOST_GPUS} GPUs of a node; share the {gpus} among nodes")
    cuda = [int(part) for part in torch.cuda.split(".")[:2]]
    cudnn, nccl = torch.cudnn, torch.nccl
    numbers = {
        "total": usable_bytes, "outside": outside_bytes, "context": int(CONTEXT_BYTES),
        "cuda": cuda[0] * 1000 + cuda[1] * 10,
        "cublas": cuda[0] * 10000 + cuda[1] * 100, "cudnn": cudnn[0] * 10000 + cudnn[1] * 100 + cudnn[2],
        "nccl": nccl[0] * 10000 + nccl[1] * 100 + nccl[2], "major": chip.major, "minor": chip.minor,
        "sms": chip.multiprocessors, "threads_per_sm": chip.threads_per_multiprocessor,
        "blocks_per_sm": chip.blocks_per_multiprocessor, "shared_per_sm": chip.shared_bytes_per_multiprocessor,
        "shared_per_block_optin": chip.shared_bytes_per_block, "shared_reserved": chip.shared_bytes_reserved,
        "gpus": gpus,
    }  # fmt: skip
    return ";".join([f"name={chip.product}", *(f"{name}={number}" for name, number in numbers.items())])


def _preloading(library: Path) -> dict[str, str]:
    """Return variables that load the emulation before NVIDIA's libraries: their search paths beat LD_LIBRARY_PATH."""
    return {
        "LD_PRELOAD": prepended(str(library / LIBRARY), os.environ.get("LD_PRELOAD")),
        "LD_LIBRARY_PATH": prepended(str(library / "empty"), os.environ.get("LD_LIBRARY_PATH")),
        "TRITON_LIBCUDA_PATH": str(library / "empty"),
    }


def prepended(first: str, rest: str | None) -> str:
    """Prepend an entry to a search path."""
    return f"{first}:{rest}" if rest else first
