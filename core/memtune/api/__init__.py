"""The `MemoryTunedJob` object: its types, its validation rules, its CRD, and how it is loaded."""

from memtune.api.errors import Problem, SpecError
from memtune.api.job import API_VERSION, GROUP, KIND, PLURAL, VERSION, Job, JobSpec
from memtune.api.load import load_job
from memtune.api.workload import architecture_of, gpu_notes, gpu_of, own_part, to_workload, unknown_gpu, unknown_product

__all__ = [
    "API_VERSION",
    "GROUP",
    "KIND",
    "PLURAL",
    "VERSION",
    "Job",
    "JobSpec",
    "Problem",
    "SpecError",
    "architecture_of",
    "gpu_notes",
    "gpu_of",
    "load_job",
    "own_part",
    "to_workload",
    "unknown_gpu",
    "unknown_product",
]
