"""The operations of a step on the emulated GPU, by the micro-batches that they belong to.

torch's execution trace has every operator with the shapes of its tensors. One counts if it works on the GPU and calls
no other that does the same; views and allocations do not, nor does the tracking of values on the CPU. Kernels of Triton
are no operators, and are counted where they are started. An operation that cannot be counted raises ValueError: a time
without it is wrong.
"""

from __future__ import annotations

import functools
import gc
import json
import math
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.profiler import ExecutionTraceObserver, record_function

from memtune.gpus.operations import Operation
from memtune_runner.emulated.trace_warnings import without_trace_warnings

_Node = Mapping[str, Any]
# Where an operator has the two matrices that it multiplies.
_PRODUCTS = {
    **dict.fromkeys(("mm", "bmm", "_scaled_mm", "_scaled_mm_v2", "_int_mm"), (0, 1)),
    **dict.fromkeys(("_grouped_mm", "_scaled_grouped_mm", "_scaled_grouped_mm_v2"), (0, 1)),
    **dict.fromkeys(("addmm", "baddbmm", "_addmm_activation"), (1, 2)),
}
# Parts of the names of operators that multiply, of which it is not known how much.
_UNCOUNTED = ("_mm", "gemm", "gemv", "matmul", "rnn", "structured_linear", "attention", "attn")
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
_UNCOUNTED_MESSAGES = ("send", "recv", "gather", "scatter", "reduce")
COLLECTIVES = frozenset(_COLLECTIVES.values())
_OWN_TRACE = "the script records an execution trace of its own"
_MODE = "PythonDispatchMode"
_HEAD = re.compile(r'\s*"id": (\d+), "name": "([^"\\]*)", "ctrl_deps": (\d+),\s*')
_SCHEMA = re.compile(r'"name": "op_schema", "type": "string", "value": "([^"\\]*)"')
# A tensor: its number, that of its storage, and where in that it begins.
_STORAGE = re.compile(r'(?<=\[)\d+,(\d+),\d+(?=,\d+,\d+,")')
_LINES = len(("{", "id", "inputs", "outputs", "attrs", "}"))
_INPUTS, _OUTPUTS = '"inputs": ', '"outputs": '
_MICRO_BATCH = "memtune: a micro-batch begins"
_TRITON = (("torch._inductor.runtime.triton_heuristics", "CachingAutotuner"), ("triton.runtime.jit", "JITFunction"))


class StepTrace:
    """Counts operations from now on until it is stopped."""

    def __init__(self) -> None:
        # torch has one trace at a time: a second observer would end the first, and torch with it.
        if any(type(each) is ExecutionTraceObserver and each.is_registered for each in gc.get_objects()):
            raise ValueError(_OWN_TRACE)
        self._triton, self._patched = [Counter[Operation]()], list[tuple[type, str, Callable[..., Any]]]()
        self._multiplies = self._gave_way = False
        self._observer = ExecutionTraceObserver()
        # An open file needs no name: nothing stays of it, however the process ends.
        with tempfile.TemporaryDirectory(prefix="memtune-") as directory:
            file = Path(directory) / "step.json"
            self._observer.register_callback(str(file))
            try:
                with without_trace_warnings():
                    self._observer.start()
                self._lines = file.open(encoding="utf-8")
            except BaseException:
                self._unregister()
                raise
        self._patch(ExecutionTraceObserver, "register_callback", self._giving_way)
        for module, name in _TRITON:
            if kernels := getattr(sys.modules.get(module), name, None):
                self._patch(kernels, "run", self._counted)

    def _patch(self, owner: type, name: str, around: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        inherited = getattr(owner, name)
        self._patched.append((owner, name, inherited))
        setattr(owner, name, around(inherited))

    def _giving_way(self, register: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(register)
        def registered(*args: Any, **kwargs: Any) -> Any:
            self._gave_way = True
            self.close()
            return register(*args, **kwargs)

        return registered

    def _counted(self, run: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(run)
        def counted(kernel: Any, *args: Any, **kwargs: Any) -> Any:
            given = (each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor) and each.is_cuda)
            self._triton[-1][Operation("kernel", "", 0, sum(each.nbytes for each in given))] += 1
            source = getattr(kernel, "src", "") or getattr(getattr(kernel, "fn", None), "src", "")
            self._multiplies |= "tl.dot(" in source
            return run(kernel, *args, **kwargs)

        return counted

    def micro_batch_began(self) -> None:
        """Count for another micro-batch from now on."""
        with record_function(_MICRO_BATCH):
            self._triton.append(Counter())

    def close(self) -> None:
        """Count no more."""
        while self._patched:
            setattr(*self._patched.pop())
        self._unregister()
        self._lines.close()

    def _unregister(self) -> None:
        with without_trace_warnings():  # torch stops a trace that goes on
            self._observer.unregister_callback()

    def stop(self) -> list[Counter[Operation]]:
        """Return what occurred before the first micro-batch, and from the beginning of each to that of the next."""
        if self._gave_way:
            raise ValueError(_OWN_TRACE)
        try:
            with without_trace_warnings():
                self._observer.stop()
            counted = operations(_nodes(self._lines))
        finally:
            self.close()
        if not any(counted):
            raise ValueError("torch's trace of it has none")
        if self._multiplies:
            raise ValueError("a kernel of Triton multiplies matrices")
        return [of_torch + of_triton for of_torch, of_triton in zip(counted, self._triton, strict=True)]


def _nodes(lines: Iterable[str]) -> Iterator[_Node]:
    """Yield the nodes of a trace one by one: all together would take more memory than the step.

    torch does not escape the name of a range that the script gave, which does nothing by itself and is left out.
    """
    source, node, end = iter(lines), list[str](), ""
    for first in source:
        # Nearly all nodes have the same number of lines.
        taken = [first, *islice(source, _LINES - 1)] if first.strip() == "{" else [first]
        if len(taken) == _LINES and taken[-1].rstrip().rstrip(",") == _end_of(first):
            if read := _read_node(taken):
                yield read
            continue
        for line in taken:
            if line.strip() == "{":
                node, end = [], _end_of(line)
            node.append(line)
            if line.rstrip().rstrip(",") == end and (read := _read_node(node)):
                yield read


def _end_of(first: str) -> str:
    """The last line of a node that begins with this one."""
    return first.rstrip().replace("{", "}")


def _read_node(lines: Sequence[str]) -> _Node | None:
    """The node in these lines; None for a range whose name cannot be read."""
    if len(lines) == _LINES and (head := _HEAD.fullmatch(lines[1])):
        _, _, inputs, outputs, attributes, _ = lines
        if (schema := _SCHEMA.search(attributes)) and _INPUTS in inputs and _OUTPUTS in outputs:
            return _LateNode(head, schema[1], inputs, outputs)
    text = "".join(lines).rstrip().rstrip(",")
    try:
        return json.loads(text)  # type: ignore[no-any-return]
    except json.JSONDecodeError:
        schema = _SCHEMA.search(text)
        if schema is None or schema[1]:
            raise
        return None


class _LateNode(dict[str, Any]):
    """A node whose inputs and outputs are read once they are asked for: those of most are not."""

    def __init__(self, head: re.Match[str], schema: str, inputs: str, outputs: str) -> None:
        super().__init__(id=int(head[1]), name=head[2], ctrl_deps=int(head[3]), op_schema=schema)
        self._late = {"inputs": inputs, "outputs": outputs}

    def __missing__(self, name: str) -> Any:
        found = self[name] = json.loads(self._late[name].partition(": ")[2].rstrip().rstrip(","))
        return found

    def described(self) -> tuple[str, str]:
        """What operation it is: its operator, and its inputs and outputs with their storages numbered anew."""
        numbers = dict[str, str]()

        def anew(tensor: re.Match[str]) -> str:
            return numbers.setdefault(tensor[1], str(len(numbers)))

        return self["op_schema"] or self["name"], _STORAGE.sub(anew, self._late["inputs"] + self._late["outputs"])


def operations(nodes: Iterable[_Node]) -> list[Counter[Operation]]:
    """Count the operations in the nodes of an execution trace, where each comes after those that it calls.

    Products and attention may have kernels that copy their inputs. An operator that a dispatch mode replaced counts as
    the calls of the mode: none where checkpointing has saved the result.
    """
    found, known = [Counter[Operation]()], dict[tuple[str, str], Operation | None]()
    working, multiplying = set[int](), set[int]()
    for node in nodes:
        if node["name"] == _MICRO_BATCH:
            found.append(Counter())
            continue
        number, caller = node["id"], node["ctrl_deps"]
        if number in working:
            working.add(caller)
        if number in multiplying or node["name"] == _MODE:
            multiplying.add(caller)
            continue
        is_collective = node["name"] == "record_param_comms"
        if number in working and not is_collective and not _may_multiply(node["name"]):
            continue
        operation = _collective(node) if is_collective else _operation(node, known)
        if operation is None or (number in working and not operation.flops):
            continue
        working.add(caller)
        if operation.flops:
            multiplying.add(caller)
        found[-1][operation] += 1
    return found


@functools.cache
def _asks_for_nothing(operator: str, schema: str) -> bool:
    """Whether a node is no operator, or one without a kernel of its own. A view writes nothing and returns a part of
    its input, or the result of an operator that it has called.
    """
    library, _, name = operator.rpartition("::")
    return (
        not schema
        or "c10d" in library
        or name in _NO_KERNEL
        or name.startswith(("empty", "new_empty"))
        or ("!" not in schema and schema.rpartition(") -> ")[2].startswith("Tensor(a)"))
    )


@functools.cache
def _may_multiply(operator: str) -> bool:
    name = operator.rpartition("::")[2]
    return name in _PRODUCTS or any(part in name for part in (*_UNCOUNTED, "convolution"))


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
            return _fp32_runs_in(torch.backends.cuda.matmul)
        return "fp8" if "Float8" in self.kind else _PRECISIONS.get(self.kind, "fp32")


def _fp32_runs_in(backend: Any) -> str:
    """The precision of products in fp32. torch 2.9 renamed the setting, and may refuse to tell the older one."""
    backend = getattr(backend, "conv", backend)  # of cuDNN
    told = getattr(backend, "fp32_precision", None)
    return "tf32" if told == "tf32" or (told is None and backend.allow_tf32) else "fp32"


class _Argument(NamedTuple):
    """An argument of an operator: its name, whether it is written, its value, and the tensors in it."""

    name: str
    is_written: bool
    value: Any
    tensors: list[_Tensor]


def _operation(node: _Node, known: dict[tuple[str, str], Operation | None]) -> Operation | None:
    """The operation of an operator that calls none; None if it does nothing on the GPU.

    Those of all layers are alike, and ``known`` once one of them was read.
    """
    if not isinstance(node, _LateNode):
        schema = next((each["value"] for each in node["attrs"] if each["name"] == "op_schema"), "")
        return None if _asks_for_nothing(node["name"], schema) else _read_operation(node, schema)
    schema = node["op_schema"]
    if _asks_for_nothing(node["name"], schema):
        return None
    if (described := node.described()) not in known:
        known[described] = _read_operation(node, schema)
    return known[described]


def _read_operation(node: _Node, schema: str) -> Operation | None:
    name = node["name"].rpartition("::")[2]
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
    found = _arithmetic(name, arguments, written, moved)
    if found is None and any(part in name for part in _UNCOUNTED):
        raise ValueError(f"{node['name']} does matrix products of unknown size")
    return found or Operation("kernel", "", 0, moved)


def _arithmetic(name: str, arguments: Sequence[_Argument], written: Sequence[_Tensor], moved: int) -> Operation | None:
    """The operation if it is a product, a convolution or attention; None for any other."""
    if name in _PRODUCTS:
        (left,), (right,) = (arguments[place].tensors for place in _PRODUCTS[name])
        *batch, rows, inner = left.shape
        # One side of grouped products has the rows or columns of all groups.
        columns, times = right.shape[-1], math.prod(batch) if len(left.shape) == len(right.shape) else 1
        return Operation("product", left.precision, 2 * rows * inner * columns * times, moved, rows, columns, times)
    named = {argument.name: argument for argument in arguments}
    if "convolution" in name and "weight" in named:
        weight = named["weight"].tensors[0]
        # In a transposed one, each element of the input meets as much of the weight.
        if "transpose" in name or ("transposed" in named and named["transposed"].value):
            meets = (named.get("input") or named["self"]).tensors[0]
        else:
            meets = named["grad_output"].tensors[0] if "grad_output" in named else written[0]
        # One product for each gradient that is asked for; that of the bias is none.
        products = sum(named["output_mask"].value[:2]) if "output_mask" in named else 1
        precision = _fp32_runs_in(torch.backends.cudnn) if weight.kind == "float" else weight.precision
        flops = 2 * products * meets.elements * weight.elements // weight.shape[0]
        return Operation("product", precision, flops, moved)
    tensors = [tensor for each in ("query", "q", "key", "k") if each in named for tensor in named[each].tensors[:1]]
    if len(tensors) == 2 and ("attention" in name or "attn" in name):
        return _attention(name, named, tensors[0], tensors[1], moved)
    return None


def _attention(name: str, named: Mapping[str, _Argument], query: _Tensor, key: _Tensor, moved: int) -> Operation:
    """Attention, of which a causal mask takes half away, and a window what lies outside of it.

    Two products go forward and five backward. Heads stand before places in cuDNN's, and behind them in the others. Of
    sequences packed into one, each is taken to be as long as the longest.
    """

    def value_of(*names: str) -> Any:
        return next((named[each].value for each in names if each in named), None)

    length = key.shape[-2 if "cudnn" in name else -3]
    if any(each.elements for name in ("cum_seq_k", "cu_seqlens_k") if name in named for each in named[name].tensors):
        length = value_of("max_k", "max_seqlen_k")
        if not isinstance(length, int):
            raise ValueError("the lengths of packed sequences are unknown")
    is_causal = any(named[each].value for each in ("is_causal", "causal", "custom_mask_type") if each in named)
    left, right = value_of("window_size_left"), value_of("window_size_right")
    if isinstance(keys := value_of("window_size"), int):  # of the memory-efficient one; 0 is none
        left = keys - 1
    has_window = isinstance(left, int) and left >= 0
    if has_window and not is_causal and not (isinstance(right, int) and right >= 0):
        raise ValueError("the window of attention is unknown")
    reach = min(length, left + 1 + (0 if is_causal else right)) if has_window else length
    products = 5 if "backward" in name or "bwd" in name else 2
    flops = 2 * products * query.elements * reach
    if is_causal:
        flops = flops * (2 * length - reach) // (2 * length)
    return Operation("cudnn-attention" if "cudnn" in name else "attention", query.precision, flops, moved)


def _collective(node: _Node) -> Operation | None:
    """A collective over NCCL; None for what only waits for one, or reaches no other rank."""
    values = node["inputs"]["values"]
    place = next((place for place, each in enumerate(values) if isinstance(each, str)), 0)
    kind = next((kind for part, kind in _COLLECTIVES.items() if part in str(values[place])), None)
    size, ranks = _size(chain.from_iterable(_values(node["inputs"]))), values[place + 5] if kind else 0
    if kind is None and size and any(part in str(values[place]) for part in _UNCOUNTED_MESSAGES):
        raise ValueError(f"how long '{values[place]}' takes is not known")
    if kind is None or not size or ranks == 1:
        return None
    if (stride := values[place + 4]) < 1:
        raise ValueError("the ranks of a group are no equal steps apart")
    passes = {"all-gather": ranks - 1, "all-reduce": 2 * (ranks - 1) / ranks, "broadcast": 1}
    return Operation(kind, "", 0, int(size * passes.get(kind, (ranks - 1) / ranks)), batch=ranks, stride=stride)


def _arguments(node: _Node, schema: str) -> list[_Argument]:
    values = zip(_declared(schema), node["inputs"]["values"], _values(node["inputs"]), strict=False)
    return [_Argument(name, is_written, value, tensors) for (name, is_written), value, tensors in values]


@functools.cache
def _declared(schema: str) -> list[tuple[str, bool]]:
    """The names of an operator's arguments, and whether it writes them."""
    inside = schema.partition("(")[2].rpartition(") ->")[0]
    declared = (part.partition("=")[0].rpartition(" ") for part in re.split(r", (?![^\[]*\])", inside) if part != "*")
    return [(name, "!" in kind) for kind, _, name in declared]


def _values(given: Mapping[str, Sequence[Any]]) -> Iterator[list[_Tensor]]:
    """Yield the tensors in each value."""
    return (_tensors(*each) for each in zip(given["values"], given["shapes"], given["types"], strict=True))


def _tensors(value: Any, shape: Any, kind: str) -> list[_Tensor]:
    if kind.startswith("Tensor("):
        _, storage, _, elements, width, device = value
        return [_Tensor(storage, elements, width, device, shape, kind[len("Tensor(") : -1])]
    if kind.startswith("GenericList[") and "Tensor(" in kind:
        return [tensor for each in zip(value, shape, _kinds(kind), strict=False) for tensor in _tensors(*each)]
    return []


@functools.cache
def _kinds(kind: str) -> list[str]:
    """The kinds of a list's values."""
    return re.split(r",(?![^\[(]*[\])])", kind[len("GenericList[") : -1])


def _size(tensors: Iterable[_Tensor]) -> int:
    """The bytes of those tensors that are on the GPU."""
    return sum(each.size for each in tensors if each.is_on_gpu)
