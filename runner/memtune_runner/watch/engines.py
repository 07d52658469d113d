"""Detects the engine around a model (DDP, FSDP, DeepSpeed), its sharding and its dtypes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch

from memtune.plans.knobs import Optimizer

# The classes that identify an engine, also as base classes or mixins.
_BACKENDS = {
    "DeepSpeedEngine": "deepspeed",
    "FSDPModule": "fsdp",
    "FullyShardedDataParallel": "fsdp",
    "DistributedDataParallel": "ddp",
}
# FSDP1's strategies under the names of plans; a wrapper with NO_SHARD has none.
_FSDP1_SHARDINGS = {
    "FULL_SHARD": "fsdp",
    "SHARD_GRAD_OP": "fsdpsgo",
    "HYBRID_SHARD": "fsdphyb",
    "_HYBRID_SHARD_ZERO2": "fsdphyb",
}
# The classes that carry out a plan's optimizer: torch's, transformers', DeepSpeed's, bitsandbytes', torchao's, our own.
_OPTIMIZERS = {
    "AdamW": Optimizer.ADAMW,
    "FusedAdam": Optimizer.ADAMW,
    "DeepSpeedCPUAdam": Optimizer.ADAMW,
    "AdamW8bit": Optimizer.ADAMW_8BIT,
    "Muon": Optimizer.MUON,
    "MuonWithAdamW": Optimizer.MUON,
    "Lion": Optimizer.LION,
    "SGD": Optimizer.SGD,
    "Adafactor": Optimizer.ADAFACTOR,
}
_LONGEST_NAME = 16  # of a word in a report
_LINEAR_NAMES = frozenset({"Conv1D"})  # the transposed linear layer of GPT-2 in transformers


class DetectedEngine(NamedTuple):
    """The engine of one model. ``is_compiled`` means that hooks see only parts of it."""

    backend: str
    zero_stage: int
    weight_dtype: str | None
    gradient_dtype: str | None
    is_compiled: bool


def describe(model: torch.nn.Module) -> DetectedEngine:
    """Detect the engine around or within a model."""
    wrapper, backend = _wrapper(model)
    stage = {"fsdp": 3, "deepspeed": 0}.get(backend, 0)
    gradient_dtype = None
    if backend == "deepspeed":
        stage = int(wrapper.zero_optimization_stage())
        gradient_dtype = dtype_name(wrapper.get_data_types()[1])
    compiled = any(hasattr(each, "_orig_mod") or each._compiled_call_impl is not None for each in model.modules())
    weights = (each for each in model.parameters() if each.requires_grad)
    return DetectedEngine(backend, stage, main_dtype(weights), gradient_dtype, compiled)


def fsdp_sharding(model: torch.nn.Module) -> str | None:
    """Return FSDP's strategy by its name in plans, right after a training forward pass; None for other engines.

    Full sharding frees the blocks' weights again after the forward pass, the other strategy keeps them; copies of the
    shards show in the mesh. The root is needed again at once: where it is the one unit and keeps its weights, both
    strategies look the same, and None is returned.
    """
    wrapper, backend = _wrapper(model)
    if backend != "fsdp":
        return None
    if hasattr(wrapper, "sharding_strategy"):
        return _FSDP1_SHARDINGS.get(wrapper.sharding_strategy.name)
    units = _fsdp_units(model)
    if any(mesh.ndim > 1 for mesh in _meshes(wrapper)):
        return "fsdphyb"
    if any(True for unit in units[1:] or units for _ in _meshes(unit)):
        return "fsdp"
    return None if len(units) == 1 else "fsdpsgo"


def is_one_fsdp_unit(model: torch.nn.Module) -> bool:
    """Whether FSDP2 shards the model as a whole, no block of it apart."""
    return len(_fsdp_units(model)) == 1


def _fsdp_units(model: torch.nn.Module) -> list[torch.nn.Module]:
    return [each for each in model.modules() if any(kind.__name__ == "FSDPModule" for kind in type(each).__mro__)]


def _meshes(module: torch.nn.Module) -> Iterator[Any]:
    """Yield the device mesh of each weight that is currently sharded."""
    return (each.device_mesh for each in module.parameters() if hasattr(each, "device_mesh"))


def learns(module: torch.nn.Module) -> bool:
    """Whether a module is (part of) a model in training, unlike transforms, losses and frozen teachers.

    Nor is one on the device meta, on which a script counts the operations of its model, as LitGPT does.
    """
    return any(each.requires_grad and not each.is_meta for each in module.parameters())


def main_dtype(tensors: Iterable[torch.Tensor]) -> str | None:
    """Return the dtype of most elements; ZeRO-3 keeps the true number of elements in an attribute."""
    elements: Counter[torch.dtype] = Counter()
    for each in tensors:
        elements[each.dtype] += max(int(getattr(each, "ds_numel", 0)), each.numel())
    return dtype_name(max(elements, key=lambda each: elements[each])) if elements else None


def compute_dtype(module: torch.nn.Module) -> str | None:
    """Return the dtype of a module's matrix products; None if it has none or its weight is quantized."""
    if not _multiplies(module):
        return None
    if "Float8" in type(module).__name__:
        return "float8"
    weight = module.weight
    if not isinstance(weight, torch.Tensor) or not weight.is_floating_point():
        return None
    device = weight.device.type
    # There is no autocast on the device meta, on which LitGPT counts the operations of a model.
    is_cast = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    if is_cast and weight.dtype is not torch.float64:
        return dtype_name(torch.get_autocast_dtype(device))
    return dtype_name(weight.dtype)


def keeps_casts(module: torch.nn.Module, computed: str) -> bool:
    """Whether a matrix product casts a frozen weight in fp32: autocast caches casts of trained weights alone.

    The product saves the copy for the gradient of its input.
    """
    weight = module.weight
    is_frozen = isinstance(weight, torch.Tensor) and not weight.requires_grad
    return is_frozen and weight.dtype is torch.float32 and computed in ("bfloat16", "float16")


def optimizer_name(optimizer: torch.optim.Optimizer) -> str | None:
    """Return the optimizer's name in plans, or else its class; None for an engine's wrapper around one."""
    name = type(optimizer).__name__
    if name.startswith("DeepSpeedZero") or hasattr(optimizer, "optimizer"):
        return None
    known = _OPTIMIZERS.get(name)
    if known is Optimizer.ADAMW and getattr(getattr(optimizer, "args", None), "optim_bits", 32) == 8:
        known = Optimizer.ADAMW_8BIT  # bitsandbytes' AdamW has 8-bit states by an argument, too
    if known:
        return known.value
    # A report takes only ASCII.
    return name[:_LONGEST_NAME] if name.isascii() else None


def dtype_name(dtype: torch.dtype) -> str:
    """Return the dtype's name without torch's prefix."""
    return str(dtype).removeprefix("torch.")


def _multiplies(module: torch.nn.Module) -> bool:
    if isinstance(module, (torch.nn.Linear, torch.nn.modules.conv._ConvNd)):
        return True
    return type(module).__name__ in _LINEAR_NAMES


def _wrapper(model: torch.nn.Module) -> tuple[Any, str]:
    for module in model.modules():
        for kind in type(module).__mro__:
            if kind.__name__ in _BACKENDS:
                return module, _BACKENDS[kind.__name__]
    return model, "none"
