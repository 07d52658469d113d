"""One process on four GPUs: each has its own books, and a model that is spread over them takes memory of each."""

import gc
import os

# cuBLAS's workspaces would be beside what is counted here.
os.environ.update(CUBLAS_WORKSPACE_CONFIG=":0:0", CUBLASLT_WORKSPACE_SIZE="0")

import torch
from accelerate import dispatch_model  # type: ignore[import-untyped]  # it has no types
from torch import nn

MIB = 2**20
GPUS = range(4)


def tell(name: str) -> None:
    """Print the peak of each GPU in MiB since the last call."""
    print(name, *(torch.cuda.max_memory_allocated(gpu) // MIB for gpu in GPUS), sep=" ")
    gc.collect()
    for gpu in GPUS:
        torch.cuda.reset_peak_memory_stats(gpu)


def held(mib: int, gpu: int) -> torch.Tensor:
    """Return a tensor on a GPU."""
    return torch.empty(mib * MIB, dtype=torch.uint8, device=f"cuda:{gpu}")


def square(mib: int) -> nn.Linear:
    """Return a layer of this size."""
    side = int((mib * MIB / 4) ** 0.5)
    return nn.Linear(side, side, bias=False)


assert torch.cuda.device_count() == 4
before = [torch.cuda.mem_get_info(gpu)[0] for gpu in GPUS]
kept = [held(64, 1), held(32, 3)]
assert [torch.cuda.memory_reserved(gpu) > 0 for gpu in GPUS] == [False, True, False, True]
assert [was - torch.cuda.mem_get_info(gpu)[0] for gpu, was in enumerate(before)] == [
    *map(torch.cuda.memory_reserved, GPUS)
]
assert torch.arange(5, device="cuda:1").to("cuda:2").tolist() == [0, 1, 2, 3, 4]
assert torch.cuda.can_device_access_peer(0, 1)
stream, event = torch.cuda.Stream(2), torch.cuda.Event()
with torch.cuda.stream(stream):
    assert torch.empty(1, device="cuda").device.index == 2
    event.record()
assert event.query()
tell("held")
kept.clear()
try:
    held(2 * 79 * 1024, 2)
except torch.OutOfMemoryError as error:
    print("full", str(error).split(". ")[2].partition(" of which")[0])
tell("after")


class Halves(nn.Module):
    """A model whose script places its halves by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = square(16).to("cuda:0"), square(16).to("cuda:1")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.last(self.first(x).to("cuda:1")))


halves = Halves()
halves(torch.ones(4, 2048, device="cuda:0")).sum().backward()
del halves
tell("halves")


class Masked(nn.Module):
    """A model that asks which of its rows count."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = square(16)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        assert mask.any()
        assert x[mask].shape[0] == int(mask.sum())
        return torch.as_tensor(self.layer(x))


mask = torch.tensor([True, False] * 8).cuda()
nn.DataParallel(Masked().cuda())(torch.ones(16, 2048).cuda(), mask).sum().backward()
tell("replicas")

layers = nn.Sequential(*(square(16) for _ in range(4)))
dispatch_model(layers, {"0": 0, "1": 0, "2": 2, "3": 2})(torch.ones(4, 2048)).sum().backward()
tell("dispatched")
