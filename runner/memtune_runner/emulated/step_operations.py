"""What a step asked of the emulated GPU: its operations in the forward pass, the backward pass and the update.

torch's execution trace has every operator with the shapes of its tensors. One counts if it works on the GPU and calls
no other that does the same; views and allocations do not, nor what follows values on the CPU. Kernels of Triton are no
operators, and are counted where they are started.
"""

from __future__ import annotations

import functools
import json
import math
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.profiler import ExecutionTraceObserver

from memtune.gpus.operations import Operation

_Node = Mapping[str, Any]
# Where an operator has the two matrices that it multiplies.
_PRODUCTS = {
    **dict.fromkeys(("mm", "bmm", "_scaled_mm", "_int_mm"), (0, 1)),
    **dict.fromkeys(("addmm", "baddbmm", "_addmm_activation"), (1, 2)),
}
# They do not read what they write to.
_FILLS = ("fill_", "zero_", "copy_", "_foreach_copy_", "_foreach_zero_")
# They read as many bytes of their input as they write.
_GATHERS = ("index_select", "gather", "index", "embedding", "nll_loss_forward")
_NO_KERNEL = ("set_", "resize_", "record_stream", "_local_scalar_dense")
_COPIES = ("copy_", "_to_copy")
_PRECISIONS = {"c10::BFloat16": "bf16", "c10::Half": "fp16", "signed char": "int8"}
_COLLECTIVES = {
    **dict.fromkeys(("allgather", "all_gather"), "all-gather"), "reduce_scatter": "reduce-scatter",
    "allreduce": "all-reduce", "broadcast": "broadcast", **dict.fromkeys(("all_to_all", "alltoall"), "all-to-all"),
}  # fmt: skip
_MODE = "PythonDispatchMode"
_TRITON = (("torch._inductor.runtime.triton_heuristics", "CachingAutotuner"), ("triton.runtime.jit", "JITFunction"))


class StepOperations(NamedTuple):
    """Each operation with how often it occurred: in the micro-batches of a step, and once in each step."""

    micro: Counter[Operation]
    update: Counter[Operation]


class StepTrace:
    """Counts operations from now on until it is stopped."""

    def __init__(self) -> None:
        self._triton, self._started = Counter[Operation](), list[tuple[Any, Callable[..., Any]]]()
        for module, name in _TRITON:
            if kernels := getattr(sys.modules.get(module), name, None):
                self._started.append((kernels, kernels.run))
                kernels.run = self._counted(kernels.run)
        self._directory = tempfile.TemporaryDirectory(prefix="memtune-")
        self._file = Path(self._directory.name) / "step.json"
        self._observer = ExecutionTraceObserver()
        self._observer.register_callback(str(self._file))
        self._observer.start()

    def _counted(self, run: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(run)
        def counted(kernel: Any, *args: Any, **kwargs: Any) -> Any:
            given = (each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor) and each.is_cuda)
            self._triton[Operation("kernel", "", 0, sum(each.nbytes for each in given))] += 1
            return run(kernel, *args, **kwargs)

        return counted

    def stop(self) -> StepOperations:
        """Return what was counted."""
        for kernels, run in self._started:
            kernels.run = run
        self._observer.stop()
        self._observer.unregister_callback()
        with self._directory, self._file.open(encoding="utf-8") as lines:
            counted = operations(_nodes(lines))
        return counted._replace(micro=counted.micro + self._triton)


def _nodes(lines: Iterable[str]) -> Iterator[_Node]:
    """Yield the nodes of a trace one by one: all together would take more memory than the step."""
    node: list[str] = []
    for line in lines:
        if line.startswith("      {"):
            node = []
        node.append(line)
        if line.startswith("      }"):
            yield json.loads("".join(node).rstrip().rstrip(","))


def operations(nodes: Iterable[_Node]) -> StepOperations:
    """Count the operations in the nodes of an execution trace, where each comes after those that it calls.

    Done once in a step are what `Optimizer.step` calls, what comes after the last product of the backward pass, and
    what is reduced over all ranks, as by DDP. Products and attention may have kernels that copy their inputs. What a
    dispatch mode took over is what that calls: nothing where checkpointing has saved the result.
    """
    found, update = list[tuple[int, Operation]](), Counter[Operation]()
    working, multiplying = set[int](), set[int]()
    for node in nodes:
        if node["name"].startswith("Optimizer.step#"):
            # It has begun before those that it calls, which have the larger numbers.
            while found and found[-1][0] > node["id"]:
                update[found.pop()[1]] += 1
        number, caller = node["id"], node["ctrl_deps"]
        if number in working:
            working.add(caller)
        if number in multiplying or node["name"] == _MODE:
            multiplying.add(caller)
            continue
        operation = _collective(node) if node["name"] == "record_param_comms" else _operation(node)
        if operation is None or (number in working and not operation.flops):
            continue
        working.add(caller)
        if operation.flops:
            multiplying.add(caller)
        if operation.kind == "all-reduce":
            update[operation] += 1
        else:
            found.append((number, operation))
    in_order = [operation for _, operation in found]
    micro = max((place for place, each in enumerate(in_order, 1) if each.flops), default=len(in_order))
    update.update(in_order[micro:])
    return StepOperations(Counter(in_order[:micro]), update)


class _Tensor(NamedTuple):
    storage: int
    elements: int
    width: int
    device: str
    shape: Sequence[int]
    kind: str

    @property
    def size(self) -> int:
        return self.elements * self.width

    @property
    def is_on_gpu(self) -> bool:
        return self.device.startswith("cuda") and self.elements > 0

    @property
    def precision(self) -> str:
        if self.kind == "float":
            return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "fp32"
        return "fp8" if "Float8" in self.kind else _PRECISIONS.get(self.kind, "fp32")


class _Argument(NamedTuple):
    """An argument of an operator: its name, whether it is written, its value, and the tensors in it."""

    name: str
    is_written: bool
    value: Any
    tensors: list[_Tensor]


def _operation(node: _Node) -> Operation | None:
    """The operation of an operator that calls none; None if it does nothing on the GPU."""
    schema = next((each["value"] for each in node["attrs"] if each["name"] == "op_schema"), "")
    library, _, name = node["name"].rpartition("::")
    if not schema or "c10d" in library or name in _NO_KERNEL or name.startswith(("empty", "new_empty")):
        return None
    arguments, outputs = _arguments(node, schema), [*chain.from_iterable(_values(node["outputs"]))]
    inputs = [tensor for argument in arguments for tensor in argument.tensors]
    storages = {each.storage for each in inputs}
    written = [tensor for argument in arguments if argument.is_written for tensor in argument.tensors]
    written += [each for each in outputs if each.storage not in storages]
    if not written or not any(each.is_on_gpu for each in (*inputs, *written)):
        return None  # a view, or on the host
    if name in _COPIES and not all(each.is_on_gpu for each in (*inputs, *written)):
        return Operation("host", "", 0, max(each.size for each in (*inputs, *written)))
    moved = _size(written)
    if name in _GATHERS:
        moved *= 2
    else:
        moved += _size(inputs)
        moved -= sum(
            _size(each.tensors) for each in arguments if each.is_written and (name in _FILLS or each.name == "out")
        )
    return _arithmetic(name, arguments, written, moved) or Operation("kernel", "", 0, moved)


def _arithmetic(name: str, arguments: Sequence[_Argument], written: Sequence[_Tensor], moved: int) -> Operation | None:
    """The operation if it is a product, a convolution or attention; None for any other."""
    if name in _PRODUCTS:
        (left,), (right,) = (arguments[place].tensors for place in _PRODUCTS[name])
        *batch, rows, inner = left.shape
        columns, times = right.shape[-1], math.prod(batch)
        return Operation("product", left.precision, 2 * rows * inner * columns * times, moved, rows, columns, times)
    named = {argument.name: argument for argument in arguments}
    if "convolution" in name and "weight" in named:
        is_backward = "grad_output" in named
        made = named["grad_output"].tensors[0] if is_backward else written[0]
        weight = named["weight"].tensors[0]
        flops = 2 * made.elements * weight.elements // weight.shape[0] * (2 if is_backward else 1)
        return Operation("product", weight.precision, flops, moved)
    tensors = [tensor for each in ("query", "q", "key", "k") if each in named for tensor in named[each].tensors[:1]]
    if len(tensors) == 2 and ("attention" in name or "attn" in name):
        return _attention(name, named, tensors[0], tensors[1], moved)
    return None


def _attention(name: str, named: Mapping[str, _Argument], query: _Tensor, key: _Tensor, moved: int) -> Operation:
    """Attention, of which a causal mask takes half away.

    Two products go forward and five backward. Heads stand before places in cuDNN's, and behind them in the others.
    """
    length = key.shape[-2 if "cudnn" in name else -3]
    flags = [named[each].value for each in ("is_causal", "causal", "custom_mask_type") if each in named]
    products = 5 if "backward" in name or "bwd" in name else 2
    flops = 2 * products * query.elements * length // (2 if any(flags) else 1)
    return Operation("cudnn-attention" if "cudnn" in name else "attention", query.precision, flops, moved)


def _collective(node: _Node) -> Operation | None:
    """A collective over NCCL; None for what only waits for one, or reaches no other rank."""
    values = node["inputs"]["values"]
    place = next((place for place, each in enumerate(values) if isinstance(each, str)), 0)
    kind = next((kind for part, kind in _COLLECTIVES.items() if part in str(values[place])), None)
    size, ranks = _size(chain.from_iterable(_values(node["inputs"]))), values[place + 5] if kind else 0
    if kind is None or not size or ranks == 1:
        return None
    passes = {"all-gather": ranks - 1, "all-reduce": 2 * (ranks - 1) / ranks, "broadcast": 1}
    return Operation(kind, "", 0, int(size * passes.get(kind, (ranks - 1) / ranks)), batch=ranks)


def _arguments(node: _Node, schema: str) -> list[_Argument]:
    inside = schema.partition("(")[2].rpartition(") ->")[0]
    declared = (part.partition("=")[0].rpartition(" ") for part in re.split(r", (?![^\[]*\])", inside) if part != "*")
    values = zip(declared, node["inputs"]["values"], _values(node["inputs"]), strict=False)
    return [_Argument(name, "!" in kind, value, tensors) for (kind, _, name), value, tensors in values]


def _values(given: Mapping[str, Sequence[Any]]) -> Iterator[list[_Tensor]]:
    """Yield the tensors in each value."""
    return (_tensors(*each) for each in zip(given["values"], given["shapes"], given["types"], strict=True))


def _tensors(value: Any, shape: Any, kind: str) -> list[_Tensor]:
    if kind.startswith("Tensor("):
        _, storage, _, elements, width, device = value
        return [_Tensor(storage, elements, width, device, shape, kind[len("Tensor(") : -1])]
    if kind.startswith("GenericList["):
        kinds = re.split(r",(?![^\[(]*[\])])", kind[len("GenericList[") : -1])
        return [tensor for each in zip(value, shape, kinds, strict=False) for tensor in _tensors(*each)]
    return []


def _size(tensors: Iterable[_Tensor]) -> int:
    """The bytes of those tensors that are on the GPU."""
    return sum(each.size for each in tensors if each.is_on_gpu)
