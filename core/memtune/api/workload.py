"""Converts a job to the predictor's input: its GPU, its architecture, its workload and its search space."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memtune.api.container import is_built_in, is_plain_python, trainer_memory
from memtune.api.errors import Problem, SpecError, either
from memtune.api.job import Job
from memtune.api.model import Peft
from memtune.api.training import EvaluationBlock
from memtune.gpus.gpu import GPUS, Gpu, closest, nearest, of_product, slice_bytes, slice_of
from memtune.memory.workload import Evaluation, Workload
from memtune.model.architecture import Adapter, Architecture, Kind
from memtune.model.count import adapter_parameters
from memtune.model.huggingface import from_hf_config
from memtune.model.plain import from_facts
from memtune.planning.space import Space
from memtune.plans.knobs import Checkpointing, Sharding
from memtune.units import gib, parse_bytes

if TYPE_CHECKING:
    from memtune.memory.traced_model import TracedModel

_CONFIG, _FACTS = "spec.model.hfConfig", "spec.model.architecture"


def architecture_of(job: Job) -> Architecture:
    """The architecture that the object describes; a factory must be traced in its image instead."""
    model = job.spec.model
    try:
        if model.hf_config is not None:
            return from_hf_config(model.hf_config, _CONFIG)
        if model.architecture is not None:
            return from_facts(model.architecture.model_dump(mode="json", by_alias=True, exclude_none=True), _FACTS)
    except ValueError as error:
        path, _, advice = str(error).partition(" ")
        raise SpecError([Problem(path.rstrip(":"), None, advice)]) from None
    advice = "what a factory builds is known only once it was traced; describe the model by hfConfig or architecture"
    raise SpecError([Problem("spec.model.factory", model.factory, advice)])


def _evaluation(block: EvaluationBlock) -> Evaluation:
    generation = block.generation
    return Evaluation(
        batch_size=block.batch_size,
        keeps_logits=block.keeps_logits,
        generates=block.generates,
        concurrent_sequences=generation.concurrent_sequences or 0,
        sequence_tokens=generation.sequence_tokens or 0,
        page_tokens=generation.page_tokens,
    )


def _check_generates(architecture: Architecture, evaluation: Evaluation) -> None:
    if evaluation.generates and architecture.kind not in (Kind.DECODER, Kind.ENCODER_DECODER):
        advice = f"a model of kind {architecture.kind.value} generates nothing; set it to false"
        raise SpecError([Problem("spec.training.evaluation.generates", True, advice)])


def _check_positions(architecture: Architecture, sequence_length: int) -> None:
    known = architecture.image.tokens if architecture.image else architecture.position_count
    if 0 < known < sequence_length:
        advice = f"{sequence_length:,} is more than the {known:,} positions that {architecture.name} has embeddings for"
        raise SpecError([Problem("spec.training.sequenceLength", sequence_length, advice)])


def _check_target(architecture: Architecture, target_length: int | None) -> None:
    if target_length is None:
        return
    if architecture.kind is not Kind.ENCODER_DECODER:
        advice = f"a model of kind {architecture.kind.value} has no targets of their own length; leave it out"
        raise SpecError([Problem("spec.training.targetLength", target_length, advice)])
    if 0 < architecture.position_count < target_length:
        count = f"{architecture.position_count:,} positions that {architecture.name} has embeddings for"
        raise SpecError([Problem("spec.training.targetLength", target_length, f"it is more than the {count}")])


def _adapter(peft: Peft, architecture: Architecture) -> Adapter:
    adapter = Adapter(peft.rank, peft.targets, peft.base_quantization, float(peft.dropout))
    try:
        adapter_parameters(architecture, adapter)
    except ValueError as error:
        raise SpecError([Problem("spec.model.peft.targets", peft.targets, str(error))]) from None
    return adapter


def _is_without_reducer(job: Job) -> bool:
    """Whether DDP wraps nothing under a plan: on a single GPU, except with the engine.

    Under a launcher, the script of an ``env`` job sees one rank of several, and many scripts then wrap the model.
    """
    spec = job.spec
    if spec.resources.nodes * spec.resources.gpus_per_node > 1 or spec.template is None:
        return False
    if spec.integration == "env":
        return is_plain_python(job)
    return spec.integration != "sdk"


def to_workload(job: Job, gpu: Gpu, model: Architecture | TracedModel | None = None) -> Workload:
    """The job's workload on this GPU. ``model`` is what its factory builds, or an assumption."""
    spec, peft, block = job.spec, job.spec.model.peft, job.spec.training.evaluation
    evaluation = _evaluation(block) if block else Evaluation()
    adapter = None
    if model is None:
        model = described = architecture_of(job)
        _check_generates(described, evaluation)
        _check_positions(described, spec.training.sequence_length)
        _check_target(described, spec.training.target_length)
        adapter = _adapter(peft, described) if peft else None
    return Workload(
        model=model,
        gpu=gpu,
        global_batch=spec.training.global_batch_size,
        sequence_length=spec.training.sequence_length,
        varying_lengths=spec.training.varying_lengths,
        nodes=spec.resources.nodes,
        gpus_per_node=spec.resources.gpus_per_node,
        adapter=adapter,
        evaluation=evaluation,
        compiled=spec.training.compile,
        compiles_loss=spec.training.compile_loss,
        target_length=spec.training.target_length or 0,
        virtual=spec.resources.device == "virtual",
        without_reducer=_is_without_reducer(job),
        # The engine autocasts only a loss outside the model. accelerate autocasts under FSDP; scripts vary.
        without_autocast=spec.integration == "sdk",
        # The engine gives DeepSpeed the model as the factory built it. transformers loads its models under zero.Init;
        # other scripts are unknown.
        builds_whole=spec.integration == "sdk",
        keeps_outputs=spec.integration == "accelerate",
        # A step of transformers' Trainer, of a LightningModule and of the engine returns the loss alone.
        drops_outputs=spec.integration in ("hf-trainer", "lightning", "sdk"),
        # accelerate's no_sync, which the Trainer enters, too (accelerator.py, set_requires_gradient_sync); the engine
        # and Lightning reduce with each micro-batch.
        defers_reduction=spec.integration in ("hf-trainer", "accelerate"),
        # transformers trainer_optimizer.py, _get_sgd; the engine's has momentum, and so do most scripts'.
        plain_sgd=spec.integration == "hf-trainer",
        # runner/memtune_runner/engine/precision.py, cast_weights
        casts_frozen=spec.integration == "sdk",
        # Any other script, and the built-in trainer, may have code of its own.
        in_transformers=spec.model.hf_config is not None and spec.integration != "env",
        recomputes_loss=is_built_in(job),
        host_limit_bytes=trainer_memory(job).limit_bytes,
    )


# A GPU sold as 80 GB gives the driver up to a tenth less than 80 GiB.
_SOLD_OVER_USABLE = 1.1


def gpu_of(job: Job) -> Gpu | None:
    """The GPU that the object names; None if only the cluster or a first probe can tell."""
    whole = _whole_gpu_of(job)
    return whole and own_part(job, whole)


def own_part(job: Job, gpu: Gpu) -> Gpu:
    """The part of a GPU that the job may use: a MIG slice, or a share of its memory if others use the same GPU."""
    resources = job.spec.resources
    # A declared size is already the slice's.
    part = gpu if resources.gpu_memory else slice_of(gpu, resources.gpu_resource)
    share = resources.memory_ratio
    return part.with_memory(int(part.usable_bytes * share)) if share < 1 else part


def _whole_gpu_of(job: Job) -> Gpu | None:
    resources = job.spec.resources
    known = of_product(resources.gpu_product) if resources.gpu_product else None
    if resources.gpu_memory is None:
        size_bytes = slice_bytes(resources.gpu_resource)
        return known or (nearest(size_bytes).with_memory(size_bytes) if size_bytes else None)
    declared_bytes = parse_bytes(resources.gpu_memory)
    gpu = known or nearest(declared_bytes)
    if resources.device == "virtual" or not gpu.usable_bytes < declared_bytes <= gpu.usable_bytes * _SOLD_OVER_USABLE:
        return gpu.with_memory(declared_bytes)
    return gpu


def unknown_product(job: Job) -> str | None:
    """The message for a product that is missing in the GPU table, with a suggestion; None if it is known."""
    product = job.spec.resources.gpu_product
    return unknown_gpu(product) if product and not of_product(product) else None


def unknown_gpu(name: str) -> str:
    """The message for a name that is missing in the GPU table, with a suggestion."""
    alike = closest(name)
    hint = f"did you mean {either(alike)}?" if alike else f"known are {', '.join(GPUS)}"
    return f"{name} is unknown ({hint})"


def gpu_notes(job: Job, gpu: Gpu) -> tuple[str, ...]:
    """Notes for a prediction about the GPU that was assumed for the job."""
    if problem := unknown_product(job):
        return (f"gpuProduct {problem}; reckoned as a GPU of {gib(gpu.usable_bytes)}, speed as of the {gpu.name}",)
    resources = job.spec.resources
    known = of_product(resources.gpu_product) if resources.gpu_product else None
    if not known or not resources.gpu_memory or resources.device == "virtual":
        return ()
    if parse_bytes(resources.gpu_memory) <= known.usable_bytes * _SOLD_OVER_USABLE:
        return ()
    note = f"gpuMemory {resources.gpu_memory} is more than the {gib(known.usable_bytes)} of a {resources.gpu_product}"
    return (f"{note}; reckoned with {gib(gpu.usable_bytes)}, as written",)


_FSDP = {
    "full": Sharding.FSDP,
    "shard-grad-op": Sharding.FSDP_SHARD_GRAD_OP,
    "hybrid": Sharding.FSDP_HYBRID,
}


def to_space(job: Job) -> Space:
    """The choices of each knob: training fixes some, tuning leaves the others open."""
    choices, training = job.spec.tuning.space, job.spec.training
    return Space(
        precisions=choices.precision,
        shardings=_shardings(job),
        checkpointings=tuple(Checkpointing.parse(name) for name in choices.checkpointing),
        offloads=choices.offload,
        optimizers=choices.optimizer or (training.optimizer,),
        gradient_dtypes=(training.gradient_dtype,),
        attentions=choices.attention or (training.attention,),
        fused_losses=choices.fused_loss,
        expandable_segments=choices.expandable_segments,
        micro_batches=choices.micro_batch or (),
        opened=_opened(job),
    )


def _opened(job: Job) -> frozenset[str]:
    """The knobs of numerics that the space opens: none where the job names its one plan."""
    if job.spec.tuning.mode == "Fixed":
        return frozenset()
    choices = job.spec.tuning.space
    found = {
        "optimizer": choices.optimizer is not None,
        "attention": choices.attention is not None,
        "fused_loss": len(choices.fused_loss) > 1,
    }
    return frozenset(name for name, is_open in found.items() if is_open)


def _shardings(job: Job) -> tuple[Sharding, ...]:
    choices = job.spec.tuning.space
    by_backend = {
        "ddp": [Sharding.DDP],
        "deepspeed": [Sharding(f"z{stage}") for stage in choices.zero_stages],
        "fsdp": [_FSDP[strategy] for strategy in choices.fsdp_strategies],
    }
    return tuple(sorted({sharding for backend in choices.backends for sharding in by_backend[backend]}))


def strategy_of(sharding: Sharding) -> str:
    """The name of an FSDP sharding in ``fsdpStrategies``."""
    return next(name for name, known in _FSDP.items() if known is sharding)
