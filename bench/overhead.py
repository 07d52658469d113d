"""Overhead of the hooks in a training step: timed one by one, and added up for models of several sizes.

Two runs of one training loop, with and without hooks, differ by more than the hooks cost, since timings on a machine
vary too much. So each hook is timed alone, on the CPU, and the counts come from the model.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from memtune.plans.plan import Plan
from memtune.units import GIB
from memtune.wire.report import Device
from memtune.wire.run import RunKind
from memtune_runner.rank.memory_counters import Reading
from memtune_runner.rank.patches import Patches
from memtune_runner.rank.ranks import Rank
from memtune_runner.rank.settings import Settings
from memtune_runner.watch.hang import HangLimits, HangRule
from memtune_runner.watch.hooks import hook_torch
from memtune_runner.watch.publish import Publisher
from memtune_runner.watch.watch import Watch

REPEATS = 7
CALLS = 2_000
# Layers, module calls in one forward pass of a Hugging Face Llama (13 in a layer, and 5 around), and minimal step
# seconds on an H100 for one micro-batch of 4,096 tokens: 6 x parameters x tokens at 989 TFLOP/s (NVIDIA data sheet).
MODELS = (("1B", 16, 1.24e9), ("8B", 32, 8.03e9), ("70B", 80, 70.6e9))
PEAK_FLOPS = 989e12


class FixedStatistics:
    """A device whose counters cost nothing to read; the cost of CUDA's is added separately."""

    device_type = "cpu"

    def read(self) -> Reading:
        return Reading(GIB, GIB, GIB, GIB, GIB, GIB, GIB, GIB, GIB, GIB, retries=0, ooms=0)

    def reset_peaks(self) -> None:
        """Nothing to reset."""

    def largest_free_block_bytes(self) -> int:
        return GIB

    def has_expandable_segments(self) -> bool:
        return False

    def free_bytes(self) -> int | None:
        return GIB

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def when_out_of_memory(self, noticed: Callable[[int], None]) -> None:
        """It never runs out."""

    def forward_began(self, micro_steps: int) -> None:
        """Nothing to do."""

    def step_ended(self, micro_steps: int, is_disturbed: bool) -> None:
        """Nothing to do."""

    def counted_seconds(self) -> None:
        """Nothing is counted."""

    def record_sites(self) -> None:
        """It has no lines of code."""

    def dump(self, path: Path) -> dict[str, object]:
        """It holds nothing."""
        return {}


def seconds_per_call(call: Callable[[], object], calls: int = CALLS) -> float:
    """The least CPU time of one call over several repeats."""
    durations = []
    for _ in range(REPEATS):
        began = time.process_time()
        for _ in range(calls):
            call()
        durations.append((time.process_time() - began) / calls)
    return min(durations)


def hook_seconds(directory: Path) -> dict[str, float]:
    """The time that each hook adds."""
    plan = Plan.parse("fp32-ddp-none-mb1x1")
    settings = Settings(plan, RunKind.TRAIN, "env", 1, 8, device=Device.VIRTUAL, gpu_memory_bytes=GIB)
    watch, patches, module = Watch(settings, 0, None, HangRule(HangLimits())), Patches(), nn.Identity()
    bare = seconds_per_call(lambda: module(1))
    watch.attach(FixedStatistics())
    publisher = Publisher(watch, Rank(0, 0, 1, 1, 0), directory)
    hook_torch(watch, patches)
    model, inputs = nn.Linear(4, 4), torch.ones(2, 4)
    optimizer = torch.optim.SGD(model.parameters())
    model(inputs)
    watch.busy, watch.applied_plan.looks_for_compute_dtype = True, False
    inner = seconds_per_call(lambda: module(1)) - bare
    watch.busy = False

    def step() -> None:
        watch.forward_began(model, (inputs,), {})
        watch.forward_ended()
        watch.backward_began()
        watch.busy = False
        watch.optimizer_ended(optimizer)

    found = {"module call": max(inner, 0.0), "step": seconds_per_call(step)}
    found["metrics, once a second"] = seconds_per_call(lambda: publisher.read(FixedStatistics().read()), 200)
    patches.undo()
    return found


def main() -> None:
    """Print the two tables."""
    with tempfile.TemporaryDirectory() as directory:
        hooks = hook_seconds(Path(directory))
    print("| hook | microseconds |\n|---|---|")
    for name, seconds in hooks.items():
        print(f"| {name} | {seconds * 1e6:.1f} |")
    print("\n| model | step, ms | hooks, ms | overhead |\n|---|---|---|---|")
    for name, layers, parameters in MODELS:
        step_seconds = 6 * parameters * 4_096 / PEAK_FLOPS
        calls = 13 * layers + 5
        added = calls * hooks["module call"] + hooks["step"] + step_seconds * hooks["metrics, once a second"]
        print(f"| {name} | {step_seconds * 1e3:.0f} | {added * 1e3:.2f} | {added / step_seconds:.3%} |")


if __name__ == "__main__":
    main()
