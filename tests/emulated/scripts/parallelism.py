"""Rank 0 of four under tensor, context and pipeline parallelism, in turn."""

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.attention import SDPBackend, sdpa_kernel

MIB = 2**20
WIDTH, TOKENS, ROWS, MICRO_BATCHES = 1024, 512, 4, 8

mesh = init_device_mesh("cuda", (4,))
device = torch.device("cuda")


class Block(nn.Module):
    """A feed-forward block."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        changed: torch.Tensor = self.down(nn.functional.gelu(self.up(hidden)))
        return hidden + changed


# Tensor parallelism: a quarter of 2 x 1,024 x 4,096 weights of 4 bytes.
block = Block().to(device)
parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
block(torch.ones(ROWS, TOKENS, WIDTH, device=device)).mean().backward()
locals_of = [weight.to_local() for weight in block.parameters() if isinstance(weight, DTensor)]
assert sum(each.nbytes for each in locals_of) == 8 * MIB
del block, locals_of

# Context parallelism: a quarter of the sequence.
hidden = torch.ones(2, 4 * TOKENS, 512, device=device, dtype=torch.bfloat16)
project = nn.Linear(512, 3 * 512, device=device, dtype=torch.bfloat16)
with sdpa_kernel(SDPBackend.FLASH_ATTENTION), context_parallel(mesh, buffers=[hidden], buffer_seq_dims=[1]):
    query, key, value = project(hidden).unflatten(-1, (3, 8, 64)).permute(2, 0, 3, 1, 4)
    attended = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    attended.mean().backward()
assert attended.shape[2] == TOKENS
del hidden, project, query, key, value, attended


def pipelined_peak(schedule: type) -> int:
    """Return the peak of a step as the first of four stages, which are two blocks each."""
    blocks = nn.Sequential(Block(), Block()).to(device)
    stage = PipelineStage(blocks, 0, 4, device)
    rows = torch.ones(ROWS * MICRO_BATCHES, TOKENS, WIDTH, device=device)
    torch.cuda.reset_peak_memory_stats()
    schedule(stage, MICRO_BATCHES, loss_fn=nn.functional.mse_loss).step(rows)
    return torch.cuda.max_memory_allocated()


# Pipeline parallelism: GPipe has all eight micro-batches in flight, and 1F1B as many as there are stages. Each keeps
# four tensors of 4 x 512 x 4,096 x 4 bytes.
more = pipelined_peak(ScheduleGPipe) - pipelined_peak(Schedule1F1B)
assert abs(more / (4 * 4 * 32 * MIB) - 1) < 0.02, more / MIB
found: list[object] = [None]
try:
    distributed.recv_object_list(found, src=1, device=device)
except RuntimeError as error:
    print(error)
