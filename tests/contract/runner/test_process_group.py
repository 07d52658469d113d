"""The end of a process group in a script whose last collective is still under way."""

from __future__ import annotations

from pathlib import Path

from launches import Place
from warm_environment import training_python

from memtune_runner.install import install

# Torch's worker thread takes the GIL to let go of what the collective keeps of Python, and whoever takes the group
# apart waits for that thread: with the GIL, where DDP's reducer is the group's last owner.
_SCRIPT = """
import gc, time, torch
from torch import distributed, nn

distributed.init_process_group("gloo")
rank = distributed.get_rank()
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))
model(torch.ones(2, 4)).sum().backward()
torch.optim.SGD(model.parameters(), lr=0.1).step()
time.sleep(2 * rank)
torch._C._stash_obj_in_tls("kept", object())
distributed.all_reduce(torch.ones(4), async_op=True)
torch._C._remove_obj_from_tls("kept")
time.sleep(rank)
distributed.destroy_process_group()
reducer = model.reducer
del model
gc.collect()
del reducer
print("over", flush=True)
"""


def test_a_process_group_that_still_works_is_left_without_a_deadlock(tmp_path: Path) -> None:
    install(tmp_path / "runner")
    place = Place(tmp_path / "runner", tmp_path, training_python())
    variables = {
        "MEMTUNE_PLAN": "fp32-ddp-none-mb2x1",
        "MEMTUNE_GLOBAL_BATCH": "4",
        "MEMTUNE_GPU_MEMORY_BYTES": str(1 << 30),
    }
    launch = place.run("torchrun", place.script(_SCRIPT), ranks=2, variables=variables)
    assert launch.exit_code == 0, launch.stdout + launch.stderr
    assert launch.stdout.count("over") == 2
