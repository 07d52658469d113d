"""Page sections about a plan, shared by several subcommands."""

from __future__ import annotations

from memtune.memory.prediction import ADMISSION, Interval, Prediction
from memtune.memory.workload import Workload
from memtune.planning.cost import dollars
from memtune.plans.plan import Plan
from memtune.units import GIB, amount, counted, gib, unit_of
from memtune_cli.input.prediction_case import PredictionCase
from memtune_cli.views.render import between, between_bytes, likely, memory_bar, seconds, wrapped
from memtune_cli.views.screen import Screen

# Host memory is shown in GB even for a small GPU.
_HOST = unit_of(GIB)


def title(screen: Screen, case: PredictionCase) -> list[str]:
    """The job, its GPUs and the assumptions."""
    return _title(screen, case, f"{case.workload.gpus_per_node} × {_gpu(case.workload)}")


def title_of_several(screen: Screen, case: PredictionCase) -> list[str]:
    """The title for a comparison of several GPUs."""
    return _title(screen, case, f"{counted(case.workload.gpus_per_node, 'GPU')} of each kind")


def _title(screen: Screen, case: PredictionCase, gpus: str) -> list[str]:
    workload = case.workload
    nodes = f"{workload.nodes} × " if workload.nodes > 1 else ""
    length = f"{'up to ' if workload.varying_lengths else ''}{workload.sequence_length:,}"
    text = f"{case.name} on {nodes}{gpus}, {workload.global_batch} sequences of {length} tokens a step"
    first, *rest = wrapped(screen, text, 2)
    notes = [line for note in case.notes for line in wrapped(screen, f"Note: {note}", 2)]
    return [first.replace(case.name, screen.bold(case.name), 1), *rest, *notes]


def _gpu(workload: Workload) -> str:
    gpu = workload.gpu
    size = amount(gpu.usable_bytes, gpu.usable_bytes)
    if not gpu.guessed:
        return f"{gpu.name} ({size} usable)"
    if workload.virtual:
        return f"virtual GPU of {size}"
    return f"GPU of {size} (not known by name; speed as of the {gpu.name})"


def detail_lines(screen: Screen, case: PredictionCase, plan: Plan, prediction: Prediction) -> list[str]:
    """One plan in detail: memory by component, speed and host memory."""
    device, usable_bytes = prediction.device, case.workload.gpu.usable_bytes
    free_bytes = usable_bytes - device.expected
    room = f"{amount(abs(free_bytes), usable_bytes)} {'free' if free_bytes >= 0 else 'missing'}"
    host = case.host(plan)
    shared = f", of it {gib(host.shared_bytes)} in /dev/shm" if host.shared_bytes >= _HOST.least_bytes else ""
    spread = between_bytes(device, unit_of(usable_bytes))
    facts = (
        f"  GPU memory   {amount(device.expected, usable_bytes)} ({spread}), {room}; "
        f"the peak is in phase {prediction.peak_phase}",
        f"  Needed       {_needed(case, prediction)}",
        f"  Speed        {_speed(case.workload, prediction)}",
        *_cost(case, prediction),
        f"  Host memory  {gib(host.required_bytes)} a pod{shared}",
    )
    lines = [line for fact in facts for line in wrapped(screen, fact, 15)]
    return [*lines, "", *memory_bar(screen, prediction, usable_bytes)]


def _needed(case: PredictionCase, prediction: Prediction) -> str:
    usable_bytes = case.workload.gpu.usable_bytes
    size, spread = (
        amount(prediction.needed.expected, usable_bytes),
        between_bytes(prediction.needed, unit_of(usable_bytes)),
    )
    chance = likely(case.fit_probability(prediction))
    slow = ", which takes time" if prediction.flushes(usable_bytes) else ""
    odds = f"the headroom stays free with a probability of {chance}"
    return f"{size} ({spread}) if the allocator empties its cache{slow}; {odds}"


def _speed(workload: Workload, prediction: Prediction) -> str:
    if workload.virtual:
        compared = f"plans are compared by that of the {workload.gpu.name}"
        return f"-  (a virtual GPU computes on CPUs, whose speed is not predicted; {compared})"
    step, tokens = prediction.step_seconds, prediction.tokens_per_second
    shown = f"{tokens.expected:,.0f} tokens/s ({between(tokens, digits=0)})"
    return f"{seconds(step.expected)} a step ({_step(step)}), {shown}"


def _cost(case: PredictionCase, prediction: Prediction) -> list[str]:
    found, price = case.cost(prediction), case.gpu_hour_price
    if found is None or price is None:
        return []
    spread = f"{dollars(found.lower)} to {dollars(found.upper)}"
    return [f"  Cost         {dollars(found.expected)} a million tokens ({spread}), at {dollars(price)} a GPU-hour"]


def _step(interval: Interval) -> str:
    # In the unit that ``seconds`` chose for the expected value.
    return between(interval) if interval.expected >= 1 else between(interval, 1e-3, 0)


def host_lines(screen: Screen, case: PredictionCase, plan: Plan) -> list[str]:
    """The host memory of a pod by component."""
    return [
        line
        for term in case.host(plan).terms
        for line in wrapped(screen, f"  {term.name:<22}{gib(term.bytes):>11}  = {term.formula}", 37)
    ]


def verdict(screen: Screen, case: PredictionCase, plan: Plan, prediction: Prediction) -> str:
    """Whether a plan fits, in one sentence."""
    usable_bytes = case.workload.gpu.usable_bytes
    chance = f"{case.headroom:.0%} stays free with a probability of {likely(case.fit_probability(prediction))}"
    if case.fits_gpu_and_host(plan, prediction):
        return screen.paint("It fits", "32;1") + f": {chance}."
    unfit = screen.paint("It does not fit", "31;1")
    if prediction.cannot_fit(usable_bytes):
        return f"{unfit}: the lower bound is above the GPU's memory."
    if reason := case.host_refusal(plan):
        return "\n".join(wrapped(screen, f"It does not fit: it {reason}.", 2)).replace("It does not fit", unfit)
    return screen.paint("It may fit", "33;1") + f": {chance}, {ADMISSION:.0%} is asked for; only a probe can tell."
