"""From a job to what the predictor reads: its architecture and its workload."""

from __future__ import annotations

from memtune.gpu import Gpu
from memtune.model.architecture import Adapter, Architecture
from memtune.model.huggingface import from_hf_config
from memtune.model.plain import from_facts
from memtune.spec.errors import Problem, SpecError
from memtune.spec.job import Job
from memtune.workload import Evaluation, Workload

_CONFIG, _FACTS = "spec.model.hfConfig", "spec.model.architecture"


def architecture_of(job: Job) -> Architecture:
    """The architecture that the object describes; a factory has to be traced where its image is."""
    model = job.spec.model
    try:
        if model.hf_config is not None:
            return from_hf_config(model.hf_config, _CONFIG)
        if model.architecture is not None:
            return from_facts(model.architecture.model_dump(mode="json", by_alias=True, exclude_none=True), _FACTS)
    except ValueError as error:
        path, _, advice = str(error).partition(" ")
        raise SpecError([Problem(path.rstrip(":"), None, advice)]) from None
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
