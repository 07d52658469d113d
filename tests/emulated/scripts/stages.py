"""The last of four stages of a pipeline, which the stage before would tell what shapes it is given."""

import os

import torch
from torch import distributed, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

MIB = 2**20
MICRO_BATCHES, LAST = 8, 3

device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
distributed.init_process_group("nccl")
hidden = torch.empty(4, 512, 1024, device=device, requires_grad=True)
target = torch.ones(4 * MICRO_BATCHES, 512, 1024, device=device)


def peak(schedule: type, *given: torch.Tensor) -> int:
    """Return the peak of a step."""
    block = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).to(device)
    stage = PipelineStage(block, LAST, 4, device, input_args=given or None)
    torch.cuda.reset_peak_memory_stats()
    schedule(stage, MICRO_BATCHES, loss_fn=nn.functional.mse_loss).step(target=target)
    return torch.cuda.max_memory_allocated()


# GPipe has all eight micro-batches in flight, and 1F1B has one. Each keeps two tensors of 4 x 512 x 4,096 x 4 bytes;
# inputs are received into memory that both have for all. At its peak, 1F1B also has gradients that it has sent.
more = peak(ScheduleGPipe, hidden) - peak(Schedule1F1B, hidden)
assert 6 * 2 * 32 * MIB < more <= 7 * 2 * 32 * MIB, more / MIB
try:
    peak(Schedule1F1B)
except RuntimeError as error:
    print(error)
