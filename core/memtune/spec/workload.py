"""From a job to what the predictor reads: its GPU, its model, its workload."""

from __future__ import annotations

from memtune.gpu import Gpu
from memtune.gpu_products import nearest, of_product
from memtune.model.architecture import Adapter, Architecture
from memtune.spec.errors import Problem, SpecError
from memtune.spec.job import Job
from memtune.units import parse_bytes
from memtune.workload import Evaluation, Workload

# A GPU sold as 80 GB gives the driver up to a tenth less than 80 GiB.
_SOLD_OVER_USABLE = 1.1


def gpu_of(job: Job) -> Gpu | None:
    """The GPU that the object itself names, or None if only the cluster or a first probe can tell."""
    resources = job.spec.resources
    known = of_product(resources.gpu_product) if resources.gpu_product else None
    if resources.gpu_memory is None:
        return known
    declared_bytes = parse_bytes(resources.gpu_memory)
    gpu = known or nearest(declared_bytes)
    if resources.device == "virtual" or not gpu.usable_bytes < declared_bytes <= gpu.usable_bytes * _SOLD_OVER_USABLE:
        return gpu.with_memory(declared_bytes)
    return gpu


def architecture_of(job: Job) -> Architecture:
    """The architecture that the object describes; a factory has to be traced where its image is."""
    from memtune.model.huggingface import from_hf_config
    from memtune.model.plain import from_facts

    model = job.spec.model
    try:
        if model.hf_config is not None:
            return from_hf_config(model.hf_config)
        if model.architecture is not None:
            return from_facts(model.architecture.model_dump(mode="json", by_alias=True, exclude_none=True))
    except ValueError as error:
        field = "hfConfig" if model.hf_config is not None else "architecture"
        raise SpecError([Problem(f"spec.model.{field}", None, str(error))]) from None
    advice = "a factory is known only inside its image; give hfConfig or architecture to predict without it"
    raise SpecError([Problem("spec.model.factory", model.factory, advice)])


def to_workload(job: Job, gpu: Gpu) -> Workload:
    """What the job asks of every plan alike, on this GPU."""
    spec, peft, evaluation = job.spec, job.spec.model.peft, job.spec.training.evaluation
    return Workload(
        architecture=architecture_of(job),
        gpu=gpu,
        global_batch=spec.training.global_batch_size,
        sequence_length=spec.training.sequence_length,
        nodes=spec.resources.nodes,
        gpus_per_node=spec.resources.gpus_per_node,
        adapter=Adapter(peft.rank, peft.targets, peft.base_quantization) if peft else None,
        evaluation=Evaluation(evaluation.batch_size, evaluation.keeps_logits, evaluation.generates)
        if evaluation
        else Evaluation(),
        compiled=spec.training.compile,
    )
