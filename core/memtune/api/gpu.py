"""The GPU that a job names, and the part of it that the job may use."""

from __future__ import annotations

from memtune.api.errors import either
from memtune.api.job import Job
from memtune.gpus.gpu import GPUS, Gpu
from memtune.gpus.products import closest, nearest, of_product, slice_bytes, slice_of
from memtune.units import gib, parse_bytes

# A GPU sold as 80 GB gives the driver up to a tenth less than 80 GiB.
_SOLD_OVER_USABLE = 1.1


def gpu_of(job: Job) -> Gpu | None:
    """The GPU that the object names; None if only the cluster or a first probe can tell."""
    whole = _whole_gpu_of(job)
    return whole and own_part(job, whole)


def own_part(job: Job, gpu: Gpu) -> Gpu:
    """The part of a GPU that the job may use: a MIG slice, or a share of its memory if others use the same GPU."""
    resources = job.spec.resources
    # A declared size is already the slice's.
    part = gpu if resources.gpu_memory else slice_of(gpu, resources.gpu_resource)
    share = resources.memory_ratio
    return part.with_memory(int(part.usable_bytes * share)) if share < 1 else part


def _whole_gpu_of(job: Job) -> Gpu | None:
    resources = job.spec.resources
    known = of_product(resources.gpu_product) if resources.gpu_product else None
    if resources.gpu_memory is None:
        size_bytes = slice_bytes(resources.gpu_resource)
        return known or (nearest(size_bytes).with_memory(size_bytes) if size_bytes else None)
    declared_bytes = parse_bytes(resources.gpu_memory)
    gpu = known or nearest(declared_bytes)
    if resources.device == "virtual" or not gpu.usable_bytes < declared_bytes <= gpu.usable_bytes * _SOLD_OVER_USABLE:
        return gpu.with_memory(declared_bytes)
    return gpu


def unknown_product(job: Job) -> str | None:
    """The message for a product that is missing in the GPU table, with a suggestion; None if it is known."""
    product = job.spec.resources.gpu_product
    return unknown_gpu(product) if product and not of_product(product) else None


def unknown_gpu(name: str) -> str:
    """The message for a name that is missing in the GPU table, with a suggestion."""
    alike = closest(name)
    hint = f"did you mean {either(alike)}?" if alike else f"known are {', '.join(GPUS)}"
    return f"{name} is unknown ({hint})"


def gpu_notes(job: Job, gpu: Gpu) -> tuple[str, ...]:
    """Notes for a prediction about the GPU that was assumed for the job."""
    if problem := unknown_product(job):
        return (f"gpuProduct {problem}; reckoned as a GPU of {gib(gpu.usable_bytes)}, speed as of the {gpu.name}",)
    resources = job.spec.resources
    known = of_product(resources.gpu_product) if resources.gpu_product else None
    if not known or not resources.gpu_memory or resources.device == "virtual":
        return ()
    if parse_bytes(resources.gpu_memory) <= known.usable_bytes * _SOLD_OVER_USABLE:
        return ()
    told = f"gpuMemory {resources.gpu_memory} is more than the {gib(known.usable_bytes)} of a {resources.gpu_product}"
    return (f"{told}; reckoned with {gib(gpu.usable_bytes)}, as written",)
