"""DeepSpeed's libraries for disks, as they are where they were built into the image: imported before a training."""

import os

import torch
from deepspeed import git_version_info  # type: ignore[import-untyped]  # it has no types
from deepspeed.ops import aio, pin_memory  # type: ignore[import-untyped]  # the same

for package in (aio, pin_memory):
    package.__path__.append(os.environ["DEEPSPEED_LIBRARIES"])
git_version_info.installed_ops.update(async_io=True, pin_memory=True)
git_version_info.accelerator_name = "cuda"
assert torch.version.cuda is not None
git_version_info.torch_info.update(
    version=".".join(torch.__version__.split(".")[:2]), cuda_version=".".join(torch.version.cuda.split(".")[:2])
)
