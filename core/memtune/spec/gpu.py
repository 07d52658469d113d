"""Which GPU a job names."""

from __future__ import annotations

from memtune.gpu import Gpu
from memtune.gpu_products import nearest, of_product
from memtune.spec.job import Job
from memtune.units import parse_bytes

# A GPU sold as 80 GB gives the driver up to a tenth less than 80 GiB.
_SOLD_OVER_USABLE = 1.1


def gpu_of(job: Job) -> Gpu | None:
    """The GPU that the object itself names, or None if only the cluster or a first probe can tell."""
    resources = job.spec.resources
    known = of_product(resources.gpu_product) if resources.gpu_product else None
    if resources.gpu_memory is None:
        return known
    declared_bytes = parse_bytes(resources.gpu_memory)
    gpu = known or nearest(declared_bytes)
    if resources.device == "virtual" or not gpu.usable_bytes < declared_bytes <= gpu.usable_bytes * _SOLD_OVER_USABLE:
        return gpu.with_memory(declared_bytes)
    return gpu
