"""Reads job files, for one GPU or several."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memtune.gpus.gpu import GPUS, find, of_product
from memtune.units import counted, gib
from memtune_cli.errors import InputError
from memtune_cli.input.prediction_case import PredictionCase

if TYPE_CHECKING:
    from memtune.api import Job
    from memtune.api.model import Model
    from memtune.gpus.gpu import Gpu
    from memtune.memory.traced_model import TracedModel
    from memtune.memory.workload import Workload


def read_case(file: str, gpu_name: str | None) -> PredictionCase:
    """Read a job file, or standard input for ``-``."""
    return _read_cases(file, [gpu_name], {})[0]


def read_cases(file: str, gpu_names: str | None, prices: Mapping[str, float]) -> list[PredictionCase]:
    """Read a job file for each GPU of a comma-separated list, or for its own. ``prices`` are dollars per hour by
    GPU."""
    prices = {name.lower(): price for name, price in prices.items()}
    if unknown := [name for name in prices if name not in GPUS]:
        raise InputError(f"--gpu-hour-price: {_unknown(unknown)}")
    cases = _read_cases(file, [None] if gpu_names is None else _listed(gpu_names), prices)
    if prices and cases[0].workload.virtual:
        raise InputError("--gpu-hour-price: the job is for device virtual, whose speed is not predicted; leave it out")
    planned = [case.workload.gpu.name for case in cases]
    if others := [name for name in prices if name not in planned]:
        raise InputError(
            f"--gpu-hour-price: {others[0]} has a price, and the job is planned for {', '.join(planned)}; "
            "leave it out, or name it in --gpu"
        )
    return cases


def _unknown(names: Sequence[str]) -> str:
    from memtune.api import unknown_gpu

    return "; ".join(map(unknown_gpu, names))


def _listed(gpu_names: str) -> list[str]:
    names = [name.strip() for name in gpu_names.split(",")]
    if not all(names):
        raise InputError(f"--gpu: a name is missing in {gpu_names!r}; write names with commas between, like a,b,c")
    if unknown := [name for name in names if name.lower() not in GPUS]:
        raise InputError(f"--gpu: {_unknown(unknown)}")
    if twice := [name for place, name in enumerate(names) if name.lower() in map(str.lower, names[:place])]:
        raise InputError(f"--gpu: {twice[0]} is given twice; leave one out")
    return names


def _read_cases(file: str, gpu_names: Sequence[str | None], prices: Mapping[str, float]) -> list[PredictionCase]:
    from memtune.api import SpecError, load_job
    from memtune_cli.input.tracing import traced_model

    shown = shown_name(file)
    try:
        job = load_job(read_manifest(file))
        if job.spec.template is not None:
            from memtune_operator.pods.references import check_template

            check_template(job)
        gpus = [_gpu(job, name, shown) for name in gpu_names]
        traced = traced_model(job) if job.spec.model.factory else None
        return [_case(job, gpu, name, traced, prices) for gpu, name in zip(gpus, gpu_names, strict=True)]
    except SpecError as error:
        raise InputError("\n".join(f"{shown}: {problem}" for problem in error.problems)) from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{shown}: {error}") from None


def _case(
    job: Job, gpu: Gpu, gpu_name: str | None, traced: TracedModel | None, prices: Mapping[str, float]
) -> PredictionCase:
    from memtune.api import gpu_notes, to_workload
    from memtune.api.workload import to_space

    workload = to_workload(job, gpu, traced)
    return PredictionCase(
        name=job.metadata.name,
        job=job,
        workload=workload,
        space=to_space(job),
        headroom=job.spec.tuning.headroom_ratio,
        objective=job.spec.tuning.objective,
        fixed=job.spec.tuning.fixed_plan,
        gpu_hour_price=prices.get(gpu.name, _own_price(job, gpu_name)),
        notes=(
            *_trace_notes(job, traced),
            *_model_notes(job.spec.model.hf_config),
            *_quantization_notes(job.spec.model),
            *_picture_notes(workload),
            *_length_notes(job, workload),
            *(() if gpu_name else gpu_notes(job, workload.gpu)),
        ),
    )


def _model_notes(config: dict[str, Any] | None) -> tuple[str, ...]:
    from memtune.model.huggingface import defaulted_sizes, misspelt

    if config is None:
        return ()
    taken = ", ".join(f"{name} ({size})" for name, size in defaulted_sizes(config).items())
    left_out = f"spec.model.hfConfig does not say {taken}: taken from transformers' {config['model_type']}"
    return (*((left_out,) if taken else ()), *(f"spec.model.hfConfig.{each}" for each in misspelt(config)))


def _length_notes(job: Job, workload: Workload) -> tuple[str, ...]:
    if _leaves_lengths_out(job, workload):
        return (
            "if batches are padded to their longest sample, training.varyingLengths: true says so, and the default "
            "allocator may reserve far more than is predicted here",
        )
    if not job.spec.training.varying_lengths or True in job.spec.tuning.space.expandable_segments:
        return ()
    return (
        "batches vary in length, so the allocator keeps more with every batch that is longer than any before. Where "
        "this peak exceeds the GPU, the allocator empties its cache, and a plan fits if what it needs does. Set "
        "tuning.space.expandableSegments to [true] to avoid it",
    )


def _leaves_lengths_out(job: Job, workload: Workload) -> bool:
    """Whether a script of a library whose collators pad like that reads text, and the job does not say how."""
    from memtune.model.architecture import Kind

    spec = job.spec
    is_text = getattr(workload.model, "kind", Kind.VISION) is not Kind.VISION  # a trace has no kind
    return (
        is_text
        and spec.integration in ("hf-trainer", "accelerate", "lightning")
        and "varying_lengths" not in spec.training.model_fields_set
        and False in spec.tuning.space.expandable_segments
        and spec.resources.device != "virtual"
    )


def _quantization_notes(model: Model) -> tuple[str, ...]:
    # Present in configs of quantized weights; a job states its base precision itself.
    is_told = model.peft is not None and model.peft.base_quantization != "none"
    if is_told or not (model.hf_config or {}).get("quantization_config"):
        return ()
    return (
        "spec.model.hfConfig.quantization_config is not read: the weights are predicted as not quantized, which "
        "spec.model.peft.baseQuantization changes",
    )


def _picture_notes(workload: Workload) -> tuple[str, ...]:
    from memtune.memory.formulas.activations import picture_bytes

    tower = getattr(workload.model, "tower", None)
    if tower is None:
        return ()
    learning = "" if workload.adapter else ", as ones that learn"
    return (
        f"all parameters of the vision tower are counted{learning}, but pictures are not: of each picture in "
        f"a micro-batch the tower keeps up to {gib(picture_bytes(tower))} more",
    )


def _trace_notes(job: Job, traced: TracedModel | None) -> tuple[str, ...]:
    if traced is None:
        return ()
    size = f"{traced.trace.total:,} parameters, {counted(traced.trace.blocks, 'repeated block')}"
    return (f"{job.spec.model.factory} was traced here: {traced.name}, {size}",)


def read_manifest(file: str) -> dict[str, Any]:
    """The object in a file, or in standard input for ``-``."""
    from memtune_cli.input.job_documents import job_document

    return job_document(_read(file), shown_name(file))


def read_job(file: str) -> dict[str, Any]:
    """The validated job in a file, as written there."""
    from memtune.api import SpecError, load_job

    manifest = read_manifest(file)
    try:
        load_job(manifest)
    except SpecError as error:
        raise InputError("\n".join(f"{shown_name(file)}: {problem}" for problem in error.problems)) from None
    return manifest


def shown_name(file: str) -> str:
    """The name of a file in messages."""
    return "standard input" if file == "-" else file


def _read(file: str) -> str:
    if not file:
        raise InputError("the file of the job is the empty text; give its path, or - for standard input")
    try:
        raw = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise InputError(f"{file}: this is not UTF-8 text; give a job as YAML or JSON") from None
    except IsADirectoryError:
        raise InputError(f"{file}: this is a directory; give the file of one job") from None
    except FileNotFoundError:
        raise InputError(f"{file}: there is no such file; give the file of a job, or - for standard input") from None
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}") from None


def _own_price(job: Job, gpu_name: str | None) -> float | None:
    """The job's price; None for another GPU than the job's own, or a virtual one, whose speed is not real."""
    resources = job.spec.resources
    is_other = gpu_name and resources.gpu_product and of_product(resources.gpu_product) != find(gpu_name)
    return None if is_other or resources.device == "virtual" else resources.gpu_hour_price


def _gpu(job: Job, gpu_name: str | None, shown: str) -> Gpu:
    from memtune.api import gpu_of, own_part, unknown_gpu, unknown_product

    if gpu_name is not None:
        try:
            return own_part(job, find(gpu_name))
        except ValueError:
            raise InputError(f"--gpu: {unknown_gpu(gpu_name)}") from None
    gpu = gpu_of(job)
    if gpu is None and (problem := unknown_product(job)):
        raise InputError(
            f"{shown}: spec.resources.gpuProduct: {problem}; correct it, give gpuMemory beside it, or --gpu h100-80gb"
        )
    if gpu is None:
        raise InputError(
            f"{shown}: spec.resources: gpuMemory and gpuProduct are not given, so the GPU is unknown; "
            "give one of them, or --gpu h100-80gb"
        )
    return gpu
