"""The table of GPU measurements, next to the prediction and to other rules for the same pairs."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from accuracy import Scored, quantile, summary, table
from accuracy_baselines import BASELINES
from accuracy_rows import Row
from gpu_driver import driver
from gpu_pairs import LENGTH, Pair, building_bytes, nccl
from gpu_score import FORMULAS, TRACE, Predict, Result, after_probes, is_beyond, scored, ways

from memtune.gpus.gpu import Gpu, nearest, of_product
from memtune.memory.prediction import Interval
from memtune.memory.traced_model import TracedModel
from memtune.units import GIB

_PROPERTIES = Path(__file__).with_name("gpu_properties.py")


class Machine(NamedTuple):
    """The machine of a measurement."""

    product: str
    usable_bytes: int
    driver: str
    cuda: str
    torch: str
    deepspeed: str
    python: str

    @property
    def gpu(self) -> Gpu:
        """The predictor's GPU, with the memory that its driver reports."""
        known = of_product(self.product.replace(" ", "-"))
        return (known or nearest(self.usable_bytes)).with_memory(self.usable_bytes)


def this_machine() -> Machine:
    """The first GPU of this machine, and the relevant versions."""
    import torch

    # A process that uses CUDA may have its own context, which would count as measured memory.
    asked = subprocess.run([sys.executable, str(_PROPERTIES)], capture_output=True, text=True, check=True)
    product, usable_bytes = json.loads(asked.stdout)
    return Machine(
        product=product,
        usable_bytes=usable_bytes,
        driver=driver(),
        cuda=str(torch.version.cuda),
        torch=torch.__version__,
        deepspeed=installed("deepspeed"),
        python=platform.python_version(),
    )


def report(
    title: str,
    command: str,
    machines: Sequence[Machine],
    results: Sequence[Result],
    traces: Mapping[str, TracedModel],
    emulated: Mapping[Pair, Result] | None = None,
    emulated_on: Sequence[Machine] = (),
) -> list[str]:
    """The whole page, by formulas and by the models' traces. It only contains measured pairs.

    The machines have one kind of GPU; their drivers and libraries may differ. ``emulated`` is what the same pairs took
    on an emulated GPU, on these machines; of another GPU, it is left out.
    """
    if any(each.gpu.name != machines[0].gpu.name for each in emulated_on):
        emulated = None
    gpu = machines[0].gpu
    both = ways(gpu, traces)
    lines = [
        f"# {title}",
        "",
        f"Made by `{command}`",
        *(
            f"on one {each.product} ({each.usable_bytes / GIB:.1f} GiB), driver {each.driver}, CUDA {each.cuda}, "
            f"torch {each.torch}, DeepSpeed {each.deepspeed}, Python {each.python};"
            for each in machines
        ),
        f"sequences of {LENGTH:,} tokens, sizes in GiB. *Device* is what is reserved while the model steps, and the",
        "CUDA context beside it; *building* is what was reserved at most before the first step, and *building by",
        "formulas* are the weights, states and buffers of then, without what is unused of the allocator's segments.",
        *(["*Emulated* is *device* on an emulated GPU, measured beforehand:"] if emulated else ()),
        *(
            f"{each.product} ({each.usable_bytes / GIB:.1f} GiB), CUDA {each.cuda}, torch {each.torch}, DeepSpeed "
            f"{each.deepspeed}, Python {each.python}."
            for each in (emulated_on if emulated else ())
        ),
        "Each pair is predicted by formulas and by a replayed trace of the model that was measured. A rank of several",
        "is rank 0 of a `fake` process group: its shards, buckets and gathered weights are real, the other ranks and",
        "NCCL's buffers are not there, so that these are not in the predictions beside it either; *NCCL* is what is",
        "predicted for them.",
    ]
    measured = [each for each in results if each.device_bytes]
    if measured:
        lines += ["", *_pair_table(measured, gpu, both, emulated or {})]
    lines += _emulated_errors(measured, emulated or {})
    for way, predict in both.items():
        lines += _scores(way, scored(results, gpu, predict), RULES if way == FORMULAS else {})
    for way, known in ((FORMULAS, {}), (TRACE, traces)):
        lines += _scores_after_probes(f"by {way}, after two probes", after_probes(results, gpu, known))
    lines += _listed("Ran out of memory:", [_ran_out(each, gpu, both) for each in results if each.ran_out])
    whole = [_built_larger(each) for each in measured if each.building_bytes > each.reserved_bytes]
    lines += _listed("Building the model took more than its steps:", whole)
    return lines + _listed("Not measured:", [f"{each.pair}: {each.problem}" for each in results if each.problem])


def llmem(row: Row) -> float:
    """LLMem's rule (Kim et al., 2404.10933): context, states, the layers' outputs and the head's.

    Weights in two bytes with a master copy in four, Adam's moments in eight, gradients in two, sharded as in the row; a
    layer only keeps its output, as under checkpointing; the head's output takes two bytes and twice four.
    """
    recipe, shape = row.recipe, row.shape
    trained = shape.trainable * (2 / recipe.weight_shards + 2 / recipe.gradient_shards + 12 / recipe.state_shards)
    outputs = 2 * recipe.tokens * shape.hidden * shape.layers
    return _CONTEXT_BYTES + trained + outputs + 10 * recipe.tokens * shape.vocab


_CONTEXT_BYTES = 0.5 * GIB
RULES: Mapping[str, Callable[[Row], float]] = {"LLMem-style": llmem, **BASELINES}


def _pair_table(
    results: Sequence[Result], gpu: Gpu, both: Mapping[str, Predict], emulated: Mapping[Pair, Result]
) -> list[str]:
    columns = ["model", "plan", "rank 0 of", "building", "building by formulas", "allocated", "reserved", "device"]
    columns += ["emulated", "error"] if emulated else []
    columns += [name for way in both for name in (f"by {way}", "error")] + ["NCCL", "step", "step by formulas"]
    lines = [_line(*columns), "|---|---|" + "--:|" * (len(columns) - 2)]
    for each in results:
        seconds = both[FORMULAS](each.pair).step_seconds
        built, expected = each.building_bytes, building_bytes(each.pair, gpu)
        told = (each.allocated_bytes, each.reserved_bytes, each.device_bytes)
        intervals = [predict(each.pair).device for predict in both.values()]
        errors = [f"{interval.expected / each.device_bytes - 1:+.1%}" for interval in intervals]
        lines.append(
            _line(
                each.pair.model,
                each.pair.plan,
                "1" if each.pair.is_alone else f"{each.pair.world} (fake)",
                f"{built / GIB:.2f}",
                f"{expected / GIB:.2f}" + (f" ({expected / built - 1:+.1%})" if built else ""),
                *(f"{size / GIB:.2f}" for size in told),
                *(_emulated(each, emulated.get(each.pair)) if emulated else ()),
                *(cell for pair in zip(map(_gib, intervals), errors, strict=True) for cell in pair),
                "" if each.pair.is_alone else _gib(nccl(each.pair, gpu)),
                f"{each.step_seconds * 1e3:.0f} ms",
                f"{seconds.expected * 1e3:.0f} ms",
            )
        )
    return lines


def _emulated(result: Result, emulated: Result | None) -> tuple[str, str]:
    if emulated is None or not emulated.device_bytes:
        return ("out of memory" if emulated and emulated.ran_out else ""), ""
    return f"{emulated.device_bytes / GIB:.2f}", f"{emulated.device_bytes / result.device_bytes - 1:+.1%}"


def _emulated_errors(measured: Sequence[Result], emulated: Mapping[Pair, Result]) -> list[str]:
    both = [(each, emulated[each.pair]) for each in measured if each.pair in emulated]
    errors = [abs(there.device_bytes / each.device_bytes - 1) for each, there in both if there.device_bytes]
    if not errors:
        return []
    middle, most = (f"{quantile(errors, share):.1%}" for share in (0.5, 0.9))
    return ["", f"*Emulated*, of {len(errors)} pairs: median error {middle}, 90th percentile {most}."]


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _gib(interval: Interval) -> str:
    low, middle, high = (size / GIB for size in interval)
    return f"{middle:.2f} ({low:.2f}–{high:.2f})"


def _scores(way: str, found: Sequence[Scored], rules: Mapping[str, Callable[[Row], float]]) -> list[str]:
    if not found:
        return []
    by_library = table(found, f"by {way}: library", lambda row: row.source, rules)
    by_ranks = table(found, f"by {way}: ranks", lambda row: row.family, rules)
    return ["", *by_library, "", *by_ranks, "", f"by {way}: {summary(found)}"]


def _scores_after_probes(title: str, found: Sequence[Scored]) -> list[str]:
    if not found:
        return []
    by_model = table(found, f"{title}: model", lambda row: row.id.partition(",")[0], {})
    return ["", *by_model, "", f"{title}: {summary(found)}"]


def _ran_out(result: Result, gpu: Gpu, both: Mapping[str, Predict]) -> str:
    told = [f"{result.pair}: ran out of memory, > {gpu.usable_bytes / GIB:.1f} GiB"]
    for way, predict in both.items():
        interval = predict(result.pair).device
        verdict = "which allows for it, not scored"
        if is_beyond(result, gpu, predict):
            short = 1 - interval.expected / gpu.usable_bytes
            verdict = f"too little by {short:.1%} or more, scored as above the upper bound"
        told.append(f"by {way} {_gib(interval)}, {verdict}")
    return "; ".join(told)


def _built_larger(result: Result) -> str:
    return f"{result.pair}: {result.building_bytes / GIB:.2f} GiB, {result.reserved_bytes / GIB:.2f} GiB"


def _listed(title: str, points: Sequence[str]) -> list[str]:
    return ["", title, "", *(f"- {each}" for each in points)] if points else []


def installed(package: str) -> str:
    """The version of a package."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
