"""The pages of `memtune emulate`, for a job (predicted and emulated memory of each plan) and for a command. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from memtune.memory.constants import DEFAULT_TRUST
from memtune.plans.plan import Plan
from memtune.units import Unit, counted, gib, unit_of
from memtune_cli.input.prediction_case import PredictionCase
from memtune_cli.views.render import Column, table, wrapped
from memtune_cli.views.screen import Screen

_METRICS = ("allocated", "active", "reserved", "device")
# Lines that hold less of the peak tell nothing.
_LEAST_SHARE = 0.005
# The versions of torch that the emulated GPU was tried with.
_TRIED = ("2.6", "2.13")
_SITES_SHOWN = 10
_READS_SHOWN = 5
NOTHING_KNOWN = "Nothing is known of its memory: it ended before it used the GPU (on the CPU?), or could not tell."


def page_of_job(screen: Screen, case: PredictionCase, result: Mapping[str, Any]) -> list[str]:
    """Render the JSON document of a job as a page."""
    gpu, ranks = result["gpu"], result["ranks"]
    where = f"rank 0 of {ranks}" if ranks > 1 else "one GPU"
    notes = [line for note in case.notes for line in wrapped(screen, f"Note: {note}", 2)]
    head = screen.bold(
        f"{result['job']} on {gpu['product']} ({gpu['name']}, {gib(gpu['usableBytes'])}), emulated, {where}"
    )
    lines = [head, *notes]
    for each in result["plans"]:
        lines += ["", *_plan(screen, each)]
    parts = estimated(result["outsideBytes"])
    versions = sorted({each["torch"] for each in result["plans"] if each["torch"]})
    lines += ["", *(screen.dim(f"torch {version}") for version in versions)]
    device = f"device is reserved, what other processes took and, by estimate, what is outside of torch: {parts}"
    return [*lines, *wrapped(screen, device, 2)]


def page_of_command(screen: Screen, result: Mapping[str, Any]) -> Iterator[str]:
    """Render the JSON document of a command as a page."""
    gpu, measured = result["gpu"], result["measured"]
    alone = "one GPU" if result["gpus"] == 1 else f"{result['gpus']} GPUs"
    where = f"rank {result['rank']} of {result['ranks']}" if result["ranks"] > 1 else alone
    yield screen.bold(f"{gpu['product']} ({gpu['name']}, {gib(gpu['usableBytes'])}), emulated, {where}")
    yield f"  {_ending_of_command(result)}"
    if result["outcome"] == "failed" and measured and any(each["value"] != "true" for each in measured["values"]):
        yield "  It had read values that no kernel has computed, which are listed below and may be the reason."
    yield from _untried(result["torch"]["version"])
    if measured is None:
        yield from (f"  {line}" for line in (NOTHING_KNOWN, *others(result["otherProcesses"])))
        return
    yield ""
    yield screen.bold("Peaks")
    peaks, outside = measured["peakBytes"], result["outsideBytes"]
    for metric in _METRICS[:3]:
        yield f"  {metric:<12}{size(peaks[metric]):>12}"
    yield f"  {'outside':<12}{size(sum(outside.values())):>12}  not emulated, an estimate: {estimated(outside)}"
    yield f"  {'host':<12}{size(measured['hostPeakBytes']):>12}  of which pinned {size(measured['pinnedPeakBytes'])}"
    yield from gpus(screen, measured["peakBytesByGpu"])
    yield ""
    yield f"Allocator retries: {measured['allocatorRetries']}; out-of-memory errors: {measured['outOfMemoryErrors']}"
    yield asked(measured)
    yield from others(result["otherProcesses"])
    yield from caveats(measured)
    torch = result["torch"]
    yield screen.dim(f"torch {torch['version']}, CUDA {torch['cuda']}, cuDNN {torch['cudnn']}, NCCL {torch['nccl']}")


def _plan(screen: Screen, result: Mapping[str, Any]) -> Iterator[str]:
    yield f"{screen.bold(result['plan'])}  {_ending(result)}"
    if result["peakBytes"] is None:
        yield from (f"  {line}" for line in (NOTHING_KNOWN, *others(result["otherProcesses"])))
        return
    unit = unit_of(result["peakBytes"]["device"])
    yield from _peaks(screen, unit, result)
    if result["phaseBytes"]:
        yield ""
        yield from _phases(screen, unit, result["phaseBytes"])
        yield from gpus(screen, result["peakBytesByGpu"])
    if result["hostPeakBytes"] is not None:
        host, pinned = size(result["hostPeakBytes"]), size(result["pinnedPeakBytes"])
        yield ""
        yield f"  Host memory {host}, of which pinned {pinned}; allocator retries: {result['allocatorRetries']}"
        yield f"  {asked(result, result['steps'])}"
        if result["stepSeconds"]:
            yield f"  {taken(result['stepSeconds'])}"
        elif reason := _untimed(result):
            yield f"  Its operations tell no time of a step: {reason}."
    if result["largest"] and result["largest"]["largest"]:
        yield from _largest(screen, result["largest"])
    if result["values"] is not None:
        yield from (f"  {line}" for line in (*others(result["otherProcesses"]), *caveats(result)))


def _ending(result: Mapping[str, Any]) -> str:
    seconds, steps = f"{result['seconds']:.1f} s", counted(result["steps"], "step")
    if result["outcome"] == "completed":
        return f"{steps} in {seconds}"
    if result["outcome"] == "outOfMemory":
        return f"out of memory after {steps}, {seconds}: {result['message']}"
    if result["outcome"] == "timeLimit":
        return f"ended after {seconds} and {steps}, when its time was up; give a larger --time-limit if it needs more"
    return f"failed after {seconds} with exit code {result['exitCode']}: {result['message']}"


def _untried(version: str) -> Iterator[str]:
    """Warn if the emulation was never tested with this torch version."""
    if ".".join(version.split(".")[:2]) not in _TRIED:
        tried = " and ".join(_TRIED)
        yield f"  The emulated GPU was tried with torch {tried}, not with {version}: an error may be its own."


def _ending_of_command(result: Mapping[str, Any]) -> str:
    seconds, message = f"{result['seconds']:.1f} s", result["message"]
    if result["outcome"] == "completed":
        return f"Completed in {seconds}."
    if result["outcome"] == "outOfMemory":
        return f"Out of memory after {seconds}: {message}"
    if result["outcome"] == "timeLimit":
        return f"Ended after {seconds}, when its time was up; give a larger --time-limit if it needs more."
    if result["outcome"] == "hostMemory":
        return (
            f"Out of host memory after {seconds}: {message}; make the weights on the meta device, or give this machine "
            "more memory."
        )
    if result["outcome"] == "missingSymbol":
        return f"A library needs what the emulated GPU does not have, found after {seconds}: {message}."
    return f"Failed after {seconds} with exit code {result['exitCode']}" + (f": {message}" if message else ".")


def _peaks(screen: Screen, unit: Unit, result: Mapping[str, Any]) -> list[str]:
    columns = (
        Column("peak", right=False),
        Column("emulated"),
        Column("predicted"),
        Column("between"),
        Column("off by"),
    )
    return table(screen, columns, [_peak(unit, result, metric) for metric in _METRICS])


def _peak(unit: Unit, result: Mapping[str, Any], metric: str) -> tuple[str, ...]:
    seen, predicted = result["peakBytes"][metric], result["predictedBytes"][metric]
    between = f"{_in(unit, predicted['lower'])} to {_in(unit, predicted['upper'])}"
    # A plan that ran out of memory needs more than this.
    error = f"{seen / predicted['expected'] - 1:+.1%}" if result["outcome"] == "completed" else ""
    return metric, f"{_in(unit, seen)} {unit.name}B", _in(unit, predicted["expected"]), between, error


def gpus(screen: Screen, peaks: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    """The peaks of each GPU that was used, where more than one was."""
    if len(peaks) > 1:
        columns = (Column("GPU", right=False), *(Column(metric) for metric in _METRICS[:3]))
        rows = [(gpu, *(size(each[metric]) for metric in _METRICS[:3])) for gpu, each in peaks.items()]
        yield ""
        yield from table(screen, columns, rows)


def _phases(screen: Screen, unit: Unit, phases: Mapping[str, Mapping[str, int]]) -> list[str]:
    columns = (Column("phase", right=False), *(Column(metric) for metric in _METRICS[:3]))
    rows = [(name, *(_in(unit, peaks[metric]) for metric in _METRICS[:3])) for name, peaks in phases.items()]
    return table(screen, columns, rows)


def _largest(screen: Screen, found: Mapping[str, Any]) -> Iterator[str]:
    yield ""
    yield f"  At the peak of tensors ({size(found['tensorBytes'])}, in {found['phase']}) most was held by"
    if not found["isWhole"]:
        yield "  (torch's history had no room for the first allocations: these are not in it)"
    columns = (
        *(Column("held"), Column("tensors"), Column("line", right=False)),
        *(Column("within", right=False, weight=1), Column("phase", right=False)),
    )
    rows = [
        (
            size(each["bytes"]),
            f"{each['tensors']:,}",
            _short(each["line"]),
            _short(each["within"]),
            each["phase"],
        )
        for each in found["largest"][:_SITES_SHOWN]
        if each["bytes"] >= _LEAST_SHARE * found["tensorBytes"]
    ]
    yield from table(screen, columns, rows)


def _in(unit: Unit, size_bytes: float) -> str:
    """An amount with one digit more than elsewhere, since an emulation is exact."""
    return unit.number(size_bytes, unit.digits)


def _short(place: str) -> str:
    """A line of code with the file name only; documents have the full path."""
    return place if "/" not in place else f"{Path(place.split(':')[0]).name}:{place.split(':', 1)[1]}"


def size(size_bytes: int) -> str:
    """An amount in a suitable unit."""
    unit = unit_of(size_bytes)
    return f"{unit.number(size_bytes, unit.digits)} {unit.name}B"


def estimated(outside_bytes: Mapping[str, int]) -> str:
    """Memory outside torch's allocator, as intervals."""
    return ", ".join(
        f"{name} {size(expected)} (give or take {DEFAULT_TRUST[name]:.0%})" for name, expected in outside_bytes.items()
    )


def asked(measured: Mapping[str, Any], steps: int | None = None) -> str:
    """The matrix products and collectives that were asked of the GPU, in all or per step."""
    products, collectives = measured["matrixProducts"], measured["collectives"]
    share = max(steps or 1, 1)
    parts = [
        f"{products['flops'] / share / 1e12:,.3g} TFLOP of matrix products",
        *(f"{each['name']} {size(each['bytes'] // share)}" for each in collectives),
    ]
    return f"Asked of the GPU{'' if steps is None else ' per step'}: {', '.join(parts)}"


def _untimed(result: Mapping[str, Any]) -> str:
    """Why the counted operations of a plan are not those of its step on a GPU; empty if they are."""
    if any(each["sizes"] for each in result["values"] or () if each["value"] != "true"):
        return "sizes of tensors came from values that no kernel has computed"
    return "its optimizer runs on the host" if Plan.parse(result["plan"]).offloads_states else ""


def taken(seconds: Mapping[str, float]) -> str:
    """The time of a step by its operations, the longest first."""
    parts = sorted(((took, name) for name, took in seconds.items() if name != "all"), reverse=True)
    named = ", ".join(f"{name} {took:.2g}" for took, name in parts if took >= seconds["all"] / 100)
    return f"By its operations, a step of the plan takes {seconds['all']:.3g} s: {named}"


def others(processes: Sequence[Mapping[str, int]] | None) -> Iterator[str]:
    """The memory of processes that the command started."""
    for each in processes or ():
        own, together, upper = (size(each[f"{name}Bytes"]) for name in ("peak", "together", "upper"))
        gpu, number = each["gpu"], each["processes"]
        yield f"Processes that it started ({number}) took up to {own} of GPU {gpu}, with their contexts."
        yield f"  All together took {together} at one time, and may take {upper} on a real GPU, beside what is outside."


def caveats(measured: Mapping[str, Any]) -> Iterator[str]:
    """Notes on what makes the numbers less certain."""
    made_up = [each for each in measured["values"] if each["value"] != "true"]
    if made_up:
        times = sum(each["times"] for each in made_up)
        yield f"The script read {counted(times, 'value')} that no kernel has computed, at:"
        yield from (f"  {each['file']}:{each['line']} ({each['times']} times)" for each in made_up[:_READS_SHOWN])
        if len(made_up) > _READS_SHOWN:
            yield f"  and {counted(len(made_up) - _READS_SHOWN, 'more line')}; --format json has all"
        sizes = sum(each["times"] for each in made_up if each["sizes"])
        yield (
            f"  {counted(sizes, 'size')} of tensors came from them: with other values, memory differs."
            if sizes
            else "  No size of a tensor came from them. If the script branches on them, memory may differ on a GPU."
        )
    else:
        yield "The script read no value that only a kernel would have computed."
    if measured["compilations"]:
        yield (
            f"torch.compile was called {counted(measured['compilations'], 'time')}, but Triton or a C compiler is "
            "missing: what was to be compiled ran as it is written, which may take other memory"
        )
    stubs = ", ".join(f"{each['name']} ({each['calls']})" for each in measured["stubs"])
    yield f"Functions that only pretended to succeed: {stubs or 'none'}"
