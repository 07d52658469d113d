"""The table of what was measured on a GPU: beside the prediction, and beside what other rules say of the same pairs."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

from accuracy import summary, table
from accuracy_baselines import BASELINES
from accuracy_rows import Row
from gpu_pairs import LENGTH, Pair, nccl, prediction
from gpu_score import Predict, Result, is_beyond, scored

from memtune.gpu import Gpu
from memtune.gpu_products import nearest, of_product
from memtune.prediction import Interval, Prediction
from memtune.units import GIB


class Machine(NamedTuple):
    """Where it was measured."""

    product: str
    usable_bytes: int
    driver: str
    cuda: str
    torch: str
    deepspeed: str

    @property
    def gpu(self) -> Gpu:
        """The GPU as the predictor knows it, with the memory that its driver gives."""
        known = of_product(self.product.replace(" ", "-"))
        return (known or nearest(self.usable_bytes)).with_memory(self.usable_bytes)


def this_machine() -> Machine:
    """The first GPU of this machine, and the versions that matter."""
    import torch

    properties = torch.cuda.get_device_properties(0)
    return Machine(
        product=properties.name,
        usable_bytes=properties.total_memory,
        driver=_driver(),
        cuda=str(torch.version.cuda),
        torch=torch.__version__,
        deepspeed=_installed("deepspeed"),
    )


def report(title: str, command: str, machine: Machine, results: Sequence[Result]) -> list[str]:
    """The whole page. Nothing is in it that was not measured."""
    gpu = machine.gpu

    def predict(pair: Pair) -> Prediction:
        return prediction(pair, gpu)

    lines = [
        f"# {title}",
        "",
        f"Made by `{command}`",
        f"on one {machine.product} ({machine.usable_bytes / GIB:.1f} GiB), driver {machine.driver}, "
        f"CUDA {machine.cuda}, torch {machine.torch}, DeepSpeed {machine.deepspeed}, "
        f"Python {platform.python_version()};",
        f"sequences of {LENGTH:,} tokens. *Device* is what the driver counts: the CUDA context, too. A rank of several",
        "is rank 0 of a `fake` process group: its shards, buckets and gathered weights are real, the other ranks and",
        "NCCL's buffers are not there, so that these are not in the prediction beside it either; *NCCL* is what is",
        "predicted for them.",
        "",
    ]
    if any(each.device_bytes for each in results):
        lines += [*_pair_table([each for each in results if each.device_bytes], gpu), ""]
    lines += _summary(results, gpu, predict)
    lines += _listed("Ran out of memory:", [_ran_out(each, gpu, predict) for each in results if each.ran_out])
    return lines + _listed("Not measured:", [f"{each.pair}: {each.problem}" for each in results if each.problem])


def llmem(row: Row) -> float:
    """In the way of LLMem (Kim et al., 2404.10933): context, states, the layers' outputs and the head's.

    Weights in two bytes with a master copy in four, Adam's moments in eight, gradients in two, sharded as in the row; a
    layer keeps its output alone, as under checkpointing; the head's output is there in two bytes and twice in four.
    """
    recipe, shape = row.recipe, row.shape
    trained = shape.trainable * (2 / recipe.weight_shards + 2 / recipe.gradient_shards + 12 / recipe.state_shards)
    outputs = 2 * recipe.tokens * shape.hidden * shape.layers
    return _CONTEXT_BYTES + trained + outputs + 10 * recipe.tokens * shape.vocab


_CONTEXT_BYTES = 0.5 * GIB
RULES: Mapping[str, Callable[[Row], float]] = {"LLMem-style": llmem, **BASELINES}


def _pair_table(results: Sequence[Result], gpu: Gpu) -> list[str]:
    lines = [
        "| model | plan | rank 0 of | allocated | reserved | device | predicted, GiB | error | NCCL | step "
        "| predicted |",
        "|---|---|--:|--:|--:|--:|---|--:|---|--:|--:|",
    ]
    for each in results:
        interval, seconds = prediction(each.pair, gpu).device, prediction(each.pair, gpu).step_seconds
        ranks = "1" if each.pair.is_alone else f"{each.pair.world} (fake)"
        beside = "" if each.pair.is_alone else _gib(nccl(each.pair, gpu))
        sizes = " | ".join(
            f"{size / GIB:.2f}" for size in (each.allocated_bytes, each.reserved_bytes, each.device_bytes)
        )
        lines.append(
            f"| {each.pair.model} | {each.pair.plan} | {ranks} | {sizes} | {_gib(interval)} "
            f"| {interval.expected / each.device_bytes - 1:+.1%} | {beside} | {each.step_seconds * 1e3:.0f} ms "
            f"| {seconds.expected * 1e3:.0f} ms |"
        )
    return lines


def _gib(interval: Interval) -> str:
    low, middle, high = (size / GIB for size in interval)
    return f"{middle:.2f} ({low:.2f}–{high:.2f})"


def _ran_out(result: Result, gpu: Gpu, predict: Predict) -> str:
    interval = predict(result.pair).device
    told = f"{result.pair}: ran out of memory, > {gpu.usable_bytes / GIB:.1f} GiB; predicted {_gib(interval)}, "
    if not is_beyond(result, gpu, predict):
        return f"{told}which allows for it: not scored"
    return (
        f"{told}too little by {1 - interval.expected / gpu.usable_bytes:.1%} or more: scored as above the upper bound"
    )


def _listed(title: str, points: Sequence[str]) -> list[str]:
    return ["", title, "", *(f"- {each}" for each in points)] if points else []


def _summary(results: Sequence[Result], gpu: Gpu, predict: Predict) -> list[str]:
    found = scored(results, gpu, predict)
    if not found:
        return []
    return [
        *table(found, "library", lambda row: row.source, RULES),
        "",
        *table(found, "ranks", lambda row: row.family, RULES),
        "",
        summary(found),
    ]


def _driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return told[0] if told else "unknown"


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
