"""The parts of a page that several subcommands show."""

from __future__ import annotations

from memtune.plan import Plan
from memtune.prediction import Prediction
from memtune.units import GIB, gib
from memtune_cli.case import Case
from memtune_cli.render import between, memory_bar, seconds
from memtune_cli.screen import Screen


def title(screen: Screen, case: Case) -> list[str]:
    """Which job on which GPUs."""
    workload = case.workload
    nodes = f"{workload.nodes} × " if workload.nodes > 1 else ""
    return [
        screen.bold(case.name)
        + f" on {nodes}{workload.gpus_per_node} × {workload.gpu.name} ({gib(workload.gpu.usable_bytes)} usable), "
        f"{workload.global_batch} sequences of {workload.sequence_length:,} tokens a step"
    ]


def detail_lines(screen: Screen, case: Case, plan: Plan, prediction: Prediction) -> list[str]:
    """One plan: how much memory, where it goes, how fast, and what its pod needs on the host."""
    device, usable_bytes = prediction.device, case.workload.gpu.usable_bytes
    free_bytes = usable_bytes - device.expected
    room = f"{gib(free_bytes)} free" if free_bytes >= 0 else f"{gib(-free_bytes)} missing"
    host = case.host(plan)
    return [
        f"  GPU memory   {gib(device.expected)} ({between(device, GIB)}), {room}; "
        f"the peak is in phase {screen.bold(prediction.peak_phase)}",
        f"  Speed        {seconds(prediction.step_seconds.expected)} a step ({between(prediction.step_seconds)}), "
        f"{prediction.tokens_per_second.expected:,.0f} tokens/s ({between(prediction.tokens_per_second, digits=0)})",
        f"  Host memory  {gib(host.required_bytes)} a pod, of it {gib(host.shared_bytes)} in /dev/shm",
        "",
        *memory_bar(screen, prediction, usable_bytes),
    ]


def verdict(screen: Screen, case: Case, prediction: Prediction) -> str:
    """Whether a plan fits, in one sentence."""
    usable_bytes = case.workload.gpu.usable_bytes
    if prediction.fits(usable_bytes, case.headroom):
        return (
            screen.paint("It fits", "32;1")
            + f": at its upper bound, and with {case.headroom:.0%} of the GPU left free."
        )
    if prediction.cannot_fit(usable_bytes):
        return screen.paint("It does not fit", "31;1") + ": even the lower bound is more than the GPU has."
    return (
        screen.paint("It may fit", "33;1") + ": the interval crosses what the GPU has free, so only a probe can tell."
    )
