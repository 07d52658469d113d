"""The parts of a page that several subcommands show."""

from __future__ import annotations

from memtune.gpu import Gpu
from memtune.plan import Plan
from memtune.prediction import Interval, Prediction
from memtune.units import GIB, amount, gib, unit_of
from memtune_cli.case import Case
from memtune_cli.render import between, between_bytes, memory_bar, seconds, wrapped
from memtune_cli.screen import Screen

# Hosts have gigabytes, however small the GPU.
_HOST = unit_of(GIB)


def title(screen: Screen, case: Case) -> list[str]:
    """Which job on which GPUs, and what had to be assumed of it."""
    workload = case.workload
    gpus = f"{workload.gpus_per_node} × {_gpu(workload.gpu)}"
    nodes = f"{workload.nodes} × " if workload.nodes > 1 else ""
    text = (
        f"{case.name} on {nodes}{gpus}, {workload.global_batch} sequences of {workload.sequence_length:,} tokens a step"
    )
    first, *rest = wrapped(screen, text, 2)
    notes = [line for note in case.notes for line in wrapped(screen, f"Note: {note}", 2)]
    return [first.replace(case.name, screen.bold(case.name), 1), *rest, *notes]


def _gpu(gpu: Gpu) -> str:
    size = amount(gpu.usable_bytes, gpu.usable_bytes)
    return (
        f"GPU of {size} (not known by name; speed as of the {gpu.name})"
        if gpu.guessed
        else f"{gpu.name} ({size} usable)"
    )


def detail_lines(screen: Screen, case: Case, plan: Plan, prediction: Prediction) -> list[str]:
    """One plan: how much memory, where it goes, how fast, and what its pod needs on the host."""
    device, usable_bytes = prediction.device, case.workload.gpu.usable_bytes
    free_bytes = usable_bytes - device.expected
    room = f"{amount(abs(free_bytes), usable_bytes)} {'free' if free_bytes >= 0 else 'missing'}"
    host = case.host(plan)
    shared = f", of it {gib(host.shared_bytes)} in /dev/shm" if host.shared_bytes >= _HOST.least_bytes else ""
    spread = between_bytes(device, unit_of(usable_bytes))
    facts = (
        f"  GPU memory   {amount(device.expected, usable_bytes)} ({spread}), {room}; "
        f"the peak is in phase {prediction.peak_phase}",
        f"  Speed        {seconds(prediction.step_seconds.expected)} a step ({_step(prediction.step_seconds)}), "
        f"{prediction.tokens_per_second.expected:,.0f} tokens/s ({between(prediction.tokens_per_second, digits=0)})",
        f"  Host memory  {gib(host.required_bytes)} a pod{shared}",
    )
    lines = [line for fact in facts for line in wrapped(screen, fact, 15)]
    return [*lines, "", *memory_bar(screen, prediction, usable_bytes)]


def _step(interval: Interval) -> str:
    # In the unit in which ``seconds`` shows the middle.
    return between(interval) if interval.expected >= 1 else between(interval, 1e-3, 0)


def host_lines(screen: Screen, case: Case, plan: Plan) -> list[str]:
    """The host memory of a pod, addend by addend."""
    return [
        line
        for term in case.host(plan).terms
        for line in wrapped(screen, f"  {term.name:<22}{gib(term.bytes):>11}  = {term.formula}", 37)
    ]


def verdict(screen: Screen, case: Case, prediction: Prediction) -> str:
    """Whether a plan fits, in one sentence."""
    usable_bytes = case.workload.gpu.usable_bytes
    if prediction.fits(usable_bytes, case.headroom):
        return screen.paint("It fits", "32;1") + f": its upper bound does, and {case.headroom:.0%} stays free."
    if prediction.cannot_fit(usable_bytes):
        return screen.paint("It does not fit", "31;1") + ": the lower bound is above the GPU's memory."
    return screen.paint("It may fit", "33;1") + ": the GPU lies within the interval, only a probe can tell."
