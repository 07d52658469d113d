"""Predicts the host memory of one pod under a plan, so that pods request enough.

A pod that requests too little dies with exit 137, which a smaller batch does not fix. Each term names its source; P is
the number of trainable parameters, N the ranks that share them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from memtune.memory.formulas.recipe import sharding_ranks
from memtune.memory.formulas.shape import shape_of
from memtune.memory.prediction import PredictsPlans
from memtune.memory.workload import Workload
from memtune.plans.deepspeed_config import NVME_BUFFER_ELEMENTS, NVME_BUFFERS, SUB_GROUP_ELEMENTS
from memtune.plans.knobs import Offload, Optimizer, Sharding
from memtune.plans.plan import Plan
from memtune.units import GIB, MIB, counted

# A process after its first CUDA kernel: 1,904,088 kB resident (pytorch#12873), 2,146 MiB (pytorch#15209).
_PROCESS_BYTES = 2 * GIB
# `import torch` without CUDA has 218 MiB resident (measured, torch 2.13); a fork shares the untouched part.
_WORKER_BYTES = 256 * MIB
# torch.utils.data.DataLoader: prefetch_factor; ids, mask and labels are int64.
_PREFETCH = 2
_TOKEN_BYTES = 3 * 8
# NCCL recommends --shm-size=1g for containers (NCCL documentation, troubleshooting, shared memory).
_NCCL_BYTES = GIB
# DeepSpeed runtime/zero/offload_config.py: buffer_count x buffer_size for parameters, buffer_count for states.
_NVME_PARAMETER_BYTES = NVME_BUFFERS * NVME_BUFFER_ELEMENTS * 2
_NVME_STATE_BUFFERS = 4
# safetensors files of transformers' save_pretrained hold up to 5 GB; a rank reads one at a time.
_FILE_BYTES = 5_000_000_000
# A Python with torch, its libraries and the values that are tracked.
_LEAST_EMULATED_BYTES = 4 * GIB


class HostTerm(NamedTuple):
    """One term of a pod's host memory."""

    name: str
    bytes: int
    formula: str
    source: str


@dataclass(frozen=True)
class HostMemory:
    """Host memory of one pod: the constant part, and temporary parts for loading and saving.

    ``converting`` another plan's checkpoint happens before the ranks start, in the first pod of a run.
    """

    running: tuple[HostTerm, ...]
    loading: tuple[HostTerm, ...]
    saving: tuple[HostTerm, ...]
    converting: HostTerm
    shared_bytes: int

    @property
    def terms(self) -> list[HostTerm]:
        """Every nonzero term, in reading order."""
        return [term for term in (*self.running, *self.loading, *self.saving, self.converting) if term.bytes]

    @property
    def required_bytes(self) -> int:
        """The peak: loading before states exist, or saving while they do."""
        processes = sum(term.bytes for term in self.running if term.name == "processes")
        return max(processes + _sum(self.loading), _sum(self.running) + _sum(self.saving))

    @property
    def converting_bytes(self) -> int:
        """The peak of a pod that converts a checkpoint before it trains."""
        return max(self.converting.bytes, self.required_bytes)


def host_memory(workload: Workload, plan: Plan, workers: int = 2, activation_bytes: float = 0.0) -> HostMemory:
    """Host memory of one pod; ``workers`` are data loader workers of each rank.

    ``activation_bytes`` is what a rank keeps for its backward pass, from the predictor; it counts only if the plan
    offloads activations.
    """
    loader = _loader(workload, plan, workers)
    nccl = _NCCL_BYTES if workload.gpus_per_node > 1 else 0
    shared_bytes = loader.bytes - workload.gpus_per_node * workers * _WORKER_BYTES + nccl
    running = (
        _term("processes", workload, _PROCESS_BYTES, "2 GiB a process", "pytorch#12873, pytorch#15209"),
        loader,
        HostTerm("nccl", nccl, "1 GiB of /dev/shm where ranks share a node", "NCCL documentation, --shm-size=1g"),
        *_offloaded(workload, plan, activation_bytes),
    )
    loading, saving = (_loading(workload, plan),), (_saving(workload, plan),)
    return HostMemory(running, loading, saving, _converting(workload, plan), shared_bytes)


def predicted_host(workload: Workload, predictor: PredictsPlans, plan: Plan) -> HostMemory:
    """Host memory of one pod, with the predictor's activations."""
    return host_memory(workload, plan, activation_bytes=kept_activation_bytes(predictor, plan))


def emulated_host_bytes(workload: Workload, predictor: PredictsPlans, plan: Plan) -> int:
    """Host memory of the one process that stands for all ranks on an emulated GPU."""
    alone = replace(workload, nodes=workload.world, gpus_per_node=1)
    return max(predicted_host(alone, predictor, plan).required_bytes, _LEAST_EMULATED_BYTES)


def offloaded_bytes(workload: Workload, plan: Plan, activation_bytes: float = 0.0) -> int:
    """Bytes that a plan offloads to the host memory of one pod."""
    return _sum(_offloaded(workload, plan, activation_bytes))


def kept_activation_bytes(predictor: PredictsPlans, plan: Plan) -> float:
    """Activations that a rank keeps in host memory for its backward pass, if the plan offloads them."""
    if plan.offload is not Offload.ACTIVATIONS:
        return 0.0
    kept = predictor.predict(replace(plan, offload=Offload.NONE))
    return sum(part.bytes.expected for part in kept.components if part.name == "activations")


def pinned_bytes(size_bytes: float) -> int:
    """The size of a pinned buffer: the next power of two (torch.cuda.memory.host_memory_stats, docs)."""
    return 1 << (int(size_bytes) - 1).bit_length() if size_bytes >= 1 else 0


def _sum(terms: Iterable[HostTerm]) -> int:
    return sum(term.bytes for term in terms)


def _term(name: str, workload: Workload, rank_bytes: float, formula: str, source: str) -> HostTerm:
    ranks = workload.gpus_per_node
    return HostTerm(name, int(ranks * rank_bytes), f"{counted(ranks, 'rank')} x {formula}", source)


def _loader(workload: Workload, plan: Plan, workers: int) -> HostTerm:
    batch_bytes = plan.micro_batch * workload.sequence_length * _TOKEN_BYTES
    formula = (
        f"{workers} workers x (256 MiB + {_PREFETCH} batches x {plan.micro_batch} x {workload.sequence_length} tokens "
        f"x {_TOKEN_BYTES} B)"
    )
    size = workers * (_WORKER_BYTES + _PREFETCH * batch_bytes)
    return _term("data loader", workload, size, formula, "torch.utils.data.DataLoader, prefetch_factor")


def _learning(workload: Workload) -> int:
    return shape_of(workload.model, workload.adapter).trainable


def _total(workload: Workload) -> int:
    return shape_of(workload.model, workload.adapter).total


def _offloaded(workload: Workload, plan: Plan, activation_bytes: float) -> list[HostTerm]:
    if plan.offload is Offload.NONE:
        return []
    if plan.offload is Offload.ACTIVATIONS:
        size = pinned_bytes(activation_bytes)
        formula = f"{activation_bytes:,.0f} B, pinned"
        return [_term("offloaded activations", workload, size, formula, "torch.autograd.graph.save_on_cpu")]
    elements = -(-_learning(workload) // sharding_ranks(workload, plan))
    if plan.offload is Offload.NVME:
        return [_nvme(workload, elements)]
    if plan.sharding.backend == "fsdp":
        return [_fsdp_offload(workload, plan, elements)]
    terms = [_optimizer_offload(workload, plan, elements)]
    if plan.offload is Offload.PARAMETERS:
        weights = -(-_total(workload) // workload.world)
        width = plan.compute_bytes
        formula = f"{width} B x {weights:,} parameters, pinned"
        source = "deepspeed runtime/zero/partition_parameters.py, offload_param"
        terms.append(_term("offloaded parameters", workload, _pinned_groups(weights, width, plan), formula, source))
    return terms


def _optimizer_offload(workload: Workload, plan: Plan, elements: int) -> HostTerm:
    # Master weights, their gradients and the 16-bit transfer buffer are pinned; the moments are ordinary memory.
    pinned = sum(_pinned_groups(elements, width, plan) for width in (4, 4, 2))
    moments, formula = _with_moments(workload, plan, elements, "(4 + 4 + 2) B pinned")
    source = "deepspeed runtime/zero/stage_1_and_2.py, cpu_offload"
    return _term("offloaded optimizer", workload, pinned + moments, formula, source)


def _with_moments(workload: Workload, plan: Plan, elements: int, pinned: str) -> tuple[float, str]:
    """Bytes of the moments, and a formula that also names the ``pinned`` bytes of each parameter."""
    each, shards = workload.optimizer_bytes(plan.optimizer), sharding_ranks(workload, plan)
    formula = f"({pinned} + {each.states:g} B) x {elements:,} parameters"
    outside = -(-shape_of(workload.model, workload.adapter).outside // shards) if each.outside else 0
    if outside:
        formula = f"({formula} + {each.outside:g} B x {outside:,} outside of the blocks)"
    return each.states * elements + each.outside * outside, formula


def _pinned_groups(elements: int, width: int, plan: Plan) -> int:
    if plan.sharding is not Sharding.ZERO_3:
        return pinned_bytes(elements * width)
    groups, rest = divmod(elements, SUB_GROUP_ELEMENTS)
    return groups * pinned_bytes(SUB_GROUP_ELEMENTS * width) + pinned_bytes(rest * width)


def _fsdp_offload(workload: Workload, plan: Plan, elements: int) -> HostTerm:
    # Each parameter's shard is pinned separately; rounding evenly spread sizes to powers of two costs 1/ln 2 - 1 = 44%.
    pinned = (4 + 4) * elements * 1.44
    moments, formula = _with_moments(workload, plan, elements, "(4 + 4) B x 1.44 pinned")
    source = "torch.distributed.fsdp.CPUOffloadPolicy: parameters, gradients and states"
    return _term("offloaded parameters and optimizer", workload, pinned + moments, formula, source)


def _nvme(workload: Workload, elements: int) -> HostTerm:
    group = min(elements, SUB_GROUP_ELEMENTS)
    states = _NVME_STATE_BUFFERS * pinned_bytes(4 * group)
    formula = f"{_NVME_STATE_BUFFERS} pinned buffers x 4 B x {group:,} elements + 5 x 100,000,000 x 2 B"
    source = "deepspeed runtime/zero/offload_config.py, buffer_count and buffer_size"
    return _term("nvme buffers", workload, states + _NVME_PARAMETER_BYTES, formula, source)


def _loading(workload: Workload, plan: Plan) -> HostTerm:
    whole = _total(workload) * plan.compute_bytes
    if plan.sharding.zero_stage == 3:
        size = min(whole, _FILE_BYTES)
        source = "transformers save_pretrained, max_shard_size; deepspeed zero.Init"
        return _term("loading", workload, size, "one file of at most 5 GB", source)
    formula = f"{plan.compute_bytes} B x {_total(workload):,} parameters"
    return _term("loading", workload, whole, formula, "each rank loads the model before it moves it to its GPU")


def _saving(workload: Workload, plan: Plan) -> HostTerm:
    count, width = _learning(workload), plan.compute_bytes
    if plan.sharding.zero_stage < 3:
        return HostTerm("saving", 0, "tensors are written from the GPU one by one", "torch.save")
    source = "deepspeed stage3_gather_16bit_weights_on_model_save; torch get_model_state_dict(full_state_dict)"
    width = 4 if plan.sharding.backend == "fsdp" else width
    return HostTerm("saving", width * count, f"{width} B x {count:,} parameters gathered on rank 0", source)


def _converting(workload: Workload, plan: Plan) -> HostTerm:
    source = "deepspeed checkpoint/ds_to_universal.py"
    is_sharded = plan.sharding.backend == "deepspeed" and plan.sharding.zero_stage
    if not is_sharded or plan.optimizer is not Optimizer.ADAMW:
        return HostTerm("converting", 0, "other checkpoints are never converted", source)
    count, shards = _learning(workload), sharding_ranks(workload, plan)
    width, states = plan.compute_bytes, 4 + workload.optimizer_bytes(plan.optimizer).states
    formula = f"2 GiB and {states:g} B x {count:,} / {shards} + {width} B x {count:,} parameters, before ranks start"
    # One worker reads the ranks' files one after the other, and the weights once.
    size = _PROCESS_BYTES + int(states * count / shards) + width * count
    return HostTerm("converting", size, formula, source)
