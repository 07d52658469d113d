"""Converts a job to the search space of plans that it allows."""

from __future__ import annotations

from memtune.api.job import Job
from memtune.planning.space import Space
from memtune.plans.knobs import Checkpointing, Sharding

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
        optimizers=(training.optimizer,),
        gradient_dtypes=(training.gradient_dtype,),
        attentions=(training.attention,),
        expandable_segments=choices.expandable_segments,
        micro_batches=choices.micro_batch or (),
    )


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
