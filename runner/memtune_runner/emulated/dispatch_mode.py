"""The dispatch mode that follows values: runs each operator on the emulated GPU, then if possible on the CPU.

No kernel computes anything there, so the values of a tensor are one of three:

- true: they derive only from host data and are small enough, so the CPU computes them into the emulated GPU's memory,
  which is ordinary memory. The real operator runs first, so allocations stay exact;
- made up: they derive from something never computed, and are consistent with one another. Uncomputed tensors count as
  uniform: ones, unless operators on such tensors gave another number;
- absent: unknown, and counted as ones.

Each read of a value is recorded with its line. The mode is suspended during the backward pass: under any mode torch
adds gradients out of place, which takes memory that a GPU run does not. Recomputed blocks and hooks of tensors are
followed again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from memtune_runner.emulated.known_values import (
    MOST_FLOATS,
    Known,
    KnownValues,
    balanced_choice,
    created_value,
    is_small,
    on_host,
    repeated_as,
    uniform_result,
)
from memtune_runner.emulated.nccl_messages import WAITS, Message, Messages, Part, bytes_of
from memtune_runner.emulated.unfilled_weights import UnfilledWeights
from memtune_runner.emulated.value_reads import ValueReads
from memtune_runner.rank.tensors import tensors_of

_aten = torch.ops.aten
# Their output's shape depends on values; on a GPU without values it would be arbitrary.
_SHAPED_BY_VALUES = torch.Tag.dynamic_output_shape
_SCALARS = (_aten._local_scalar_dense, _aten.is_nonzero, _aten.equal)
_COPIES = (_aten._to_copy, _aten.copy_, _aten.clone, _aten._foreach_copy_)
_PLAIN_COPIES = (_aten.copy_, _aten.clone)
_EMPTY = (_aten.empty, _aten.empty_like, _aten.empty_strided, _aten.new_empty, _aten.new_empty_strided)
# They give a tensor another memory, of which as much is known as before, or write nothing to what they make.
_WRITING_NOTHING = (*_EMPTY, _aten.set_)
# Not worth the minutes that the CPU takes in half precision, unless the numbers are true.
_SLOW = (_aten.convolution, _aten.cudnn_convolution)
# A CPU takes a hundredth of the time for them in single precision, in which a GPU adds up as well.
_PRODUCTS = (_aten.mm, _aten.addmm, _aten.bmm, _aten.baddbmm)
# Others, most of them a library's, may take minutes on the CPU for many integers, and ignore strides.
_TORCHS = ("aten", "prims")
# They read nothing of what they write, whose type may be another than that of the numbers there.
_OVERWRITING = (_aten.zero_, _aten.fill_, _aten.copy_)
# Operators that fill weights with random numbers.
_DRAWING = (_aten.normal_, _aten.uniform_)
_INDEXING = (_aten.index, _aten.index_put, _aten.index_put_, _aten._index_put_impl_)


_HOST = torch.device("cpu")
_record: Callable[[bool], None] = torch._C._autograd._enable_record_function


def _mapped(values: Any, kinds: Any, function: Callable[[Any], Any]) -> Any:
    """Apply a function to what is of these kinds in an operator's arguments or results."""
    if isinstance(values, kinds):
        return function(values)
    if type(values) in (tuple, list):
        return type(values)([_mapped(each, kinds, function) for each in values])
    if type(values) is dict:
        return {name: _mapped(each, kinds, function) for name, each in values.items()}
    return values


def _is_whole(tensor: torch.Tensor) -> bool:
    """Whether a tensor is all of its storage."""
    return tensor.nbytes == tensor.untyped_storage().nbytes()


def _unexpanded(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous() if 0 in tensor.stride() else tensor


def _sparse(places: torch.Tensor, values: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    return torch.sparse_coo_tensor(places, values, shape, is_coalesced=True, check_invariants=False)


@cache
def _is_of_elements(func: Any) -> bool:
    """Whether an operator gives one number wherever its inputs have one."""
    return torch.Tag.pointwise in func.tags or func.overloadpacket in _FILLING


def _read_of(func: Any, inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """Return the inputs whose values matter."""
    return inputs[1:] if func.overloadpacket in _OVERWRITING else inputs


@cache
def _written_arguments(func: Any) -> list[tuple[int, str]]:
    """The places and names of the arguments that an operator writes."""
    arguments = enumerate(func._schema.arguments)
    return [(place, each.name) for place, each in arguments if each.alias_info is not None and each.alias_info.is_write]


class ValueMode(TorchDispatchMode):
    """Gives tensors the values that a script reads, as this module's head says."""

    def __init__(self, reads: ValueReads, unfilled: UnfilledWeights, stands_for_all: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves the base class untyped
        self._reads, self._unfilled, self._messages = reads, unfilled, Messages(stands_for_all)
        self._book = KnownValues()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # suspended in what is compiled; keeping the compiler out would import it, which takes a second

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run the operator on its device and record what is known of its results."""
        kwargs = dict(kwargs or {})
        if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None:
            return func(*args, **kwargs)  # only shapes are wanted
        if any(each.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__ for each in types):  # type: ignore[attr-defined]
            return NotImplemented  # a tensor subclass: its inner operators arrive here later
        inputs = [*tensors_of(args), *tensors_of(kwargs)]
        packet = func.overloadpacket
        if packet in _SCALARS and any(each.is_cuda for each in inputs):
            return self._read(func, args, kwargs, inputs)
        if _SHAPED_BY_VALUES in func.tags and any(each.is_cuda for each in inputs):
            return self._shaped_by_values(func, args, kwargs, inputs)
        if (left := self._left_unfilled(packet, inputs, kwargs)) is not None:
            return left
        if packet in _INDEXING:
            args = (args[0], self._numbers_of_masks(args[1]), *args[2:])
        result = func(*args, **kwargs)
        outputs = tensors_of(result)
        _record(False)  # a trace of the step, or a profiler of the script, sees nothing of what follows
        try:
            if any(each.layout is not torch.strided for each in (*inputs, *outputs)):
                self._follow_sparse(func, args, kwargs, inputs, outputs)
            elif any(each.is_cuda for each in (*inputs, *outputs)):
                self._follow(func, args, kwargs, inputs, outputs)
            else:
                self._follow_on_host(func, args, kwargs, inputs)
        finally:
            _record(True)
        return result

    def _left_unfilled(
        self, packet: Any, inputs: Sequence[torch.Tensor], kwargs: Mapping[str, Any]
    ) -> torch.Tensor | None:
        """Return a large tensor of the host that was to be filled with random numbers, or made of one that was."""
        made = None
        if packet in _DRAWING and inputs[0].device == _HOST and not is_small(inputs[0]):
            made = inputs[0]
        elif packet is _aten._to_copy and kwargs.get("device") in (None, _HOST) and self._unfilled.has(inputs[0]):
            made = torch.empty_like(inputs[0], dtype=kwargs.get("dtype"))
        if made is not None:
            self._unfilled.leave(made)
        return made

    def _follow_on_host(self, func: Any, args: Any, kwargs: Any, inputs: Sequence[torch.Tensor]) -> None:
        if self._unfilled:
            self._unfilled.written(self._written(func, args, kwargs, inputs, []))
        if self._messages.are_alike(func, args, kwargs):
            self._reads.note(False)  # no later read is seen

    def show(self, tensor: torch.Tensor, plain: Callable[..., str]) -> str:
        """Format a tensor; torch removes every mode before it prints, and would find no values."""
        if not is_small(tensor):
            return f"tensor(..., device='{tensor.device}', size={tuple(tensor.shape)}, dtype={tensor.dtype})"
        self._note([tensor])
        return plain(self._tensor_on_host(tensor.detach()).clone())

    def doubt_numbers(self) -> None:
        """Mark all values as not true after a backward pass, which was not followed and may have added gradients."""
        self._book.doubt()

    def lose(self, tensors: Sequence[torch.Tensor]) -> None:
        """Forget the values of tensors that a kernel has written."""
        for tensor in tensors:
            self._book.put(tensor, None)

    def doubt(self, tensors: Sequence[torch.Tensor]) -> None:
        """Mark the values of tensors as not true; those in memory stay."""
        for tensor in tensors:
            if (known := self._book.of(tensor)) is not None:
                self._book.put(tensor, known._replace(is_true=False))

    def _read(self, func: Any, args: Any, kwargs: Any, inputs: Sequence[torch.Tensor]) -> Any:
        self._note(inputs)
        if all(is_small(each) for each in inputs):
            return func(*self._on_host(args), **kwargs)
        return func is not _aten.equal.default or inputs[0] is inputs[1]

    def _note(self, tensors: Sequence[torch.Tensor], sizes: bool = False) -> None:
        self._reads.note(self._are_true(tensors), sizes)

    def _are_true(self, tensors: Sequence[torch.Tensor]) -> bool:
        known = [self._book.of(each) for each in tensors if each.is_cuda]
        return all(each is not None and each.is_true for each in known)

    def places(self, mask: torch.Tensor) -> torch.Tensor:
        """Return the places of a mask that an operator makes, or a backward pass looks at."""
        self._note_size(mask)
        return self._shaped_alike(_aten.nonzero.default, (mask,), {}, [mask])  # type: ignore[no-any-return]

    def _note_size(self, tensor: torch.Tensor) -> None:
        """Record that an operator takes a size from these values, but for a backward pass, which is on no line."""
        if torch._C._current_graph_task_id() < 0:
            self._note([tensor], sizes=True)

    def coalesced(self, sparse: torch.Tensor) -> torch.Tensor:
        """Return a sparse tensor with each of its places once; how many there are, no kernel has counted."""
        places, values = sparse._indices(), sparse._values()
        self._note_size(places)
        # A copy of known places, as autograd makes one, is not followed in a backward pass, but small ones are real.
        found = self._on_host(places) if self._book.of(places) is not None else on_host(places)
        sizes = torch.tensor(sparse.shape[: sparse.sparse_dim()])[:, None]
        if not is_small(places) or bool(((found < 0) | (found >= sizes)).any()):
            return _sparse(places.clone(), values.clone(), sparse.shape)  # as if all differed, which takes the most
        named, numbers = torch.unique(found, dim=1, return_inverse=True)
        indices = torch.empty_like(named, device=places.device)
        self._put(indices, named, self._are_true([places]))
        summed = torch.empty((named.shape[1], *values.shape[1:]), dtype=values.dtype, device=values.device)
        if is_small(values):
            sums = torch.zeros(summed.shape, dtype=values.dtype).index_add_(0, numbers, self._on_host(values))
            self._put(summed, sums, self._are_true([places, values]))
        return _sparse(indices, summed, sparse.shape)

    def _shaped_by_values(self, func: Any, args: Any, kwargs: Any, inputs: Sequence[torch.Tensor]) -> Any:
        """Run an operator whose output shape depends on values, which counts as a read by the script."""
        self._note(inputs, sizes=True)
        return self._shaped_alike(func, args, kwargs, inputs)

    def _shaped_alike(self, func: Any, args: Any, kwargs: Any, inputs: Sequence[torch.Tensor]) -> Any:
        is_true = self._are_true(inputs)
        device = next(each.device for each in inputs if each.is_cuda)
        if func.overloadpacket is _aten.masked_select and not is_small(args[0]):
            mask = self._on_host(args[1]).expand(args[0].shape)
            return torch.empty(int(mask.sum()), dtype=args[0].dtype, device=device)
        result = func(*self._on_host(args), **self._on_host(kwargs))

        def there(tensor: torch.Tensor) -> torch.Tensor:
            made = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
            self._put(made, tensor, is_true)
            return made

        return _mapped(result, torch.Tensor, there)

    def _numbers_of_masks(self, indices: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """Convert masks to indices, because the operator would do so inside, where it cannot be followed."""
        found: list[torch.Tensor | None] = []
        for index in indices:
            if index is not None and index.is_cuda and index.dtype in (torch.bool, torch.uint8):
                places = self._shaped_by_values(_aten.nonzero.default, (index,), {}, [index])
                values = self._on_host(places)
                for dimension in range(places.shape[1]):
                    column = places.select(1, dimension).contiguous()
                    self._put(column, values.select(1, dimension), self._are_true([index]))
                    found.append(column)
            else:
                found.append(index)
        return found

    def _on_host(self, values: Any) -> Any:
        """Return the arguments with tensors of the emulated GPU as CPU tensors."""
        return _mapped(values, (torch.Tensor, torch.device), self._leaf_on_host)

    def _leaf_on_host(self, leaf: torch.Tensor | torch.device) -> torch.Tensor | torch.device:
        return self._tensor_on_host(leaf) if isinstance(leaf, torch.Tensor) else _HOST

    def _tensor_on_host(self, tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_cuda:
            return tensor
        repeated = self._book.repeated_in(tensor)
        # Neither function can name torch.
        return on_host(tensor) if repeated is None else repeated_as(tensor, *repeated)  # type: ignore[no-any-return]

    def _put(self, tensor: torch.Tensor, values: torch.Tensor, is_true: bool) -> None:
        """Write values into the emulated GPU's memory."""
        if tensor.numel():
            on_host(tensor).copy_(values)
        self._book.put(tensor, Known(is_true))

    def _follow(
        self, func: Any, args: Any, kwargs: Any, inputs: list[torch.Tensor], outputs: list[torch.Tensor]
    ) -> None:
        if func.overloadpacket is _aten.lift_fresh:
            # The result of torch.tensor(), whose copy from the host no mode sees.
            self._book.put(outputs[0], Known(True) if is_small(outputs[0]) else None)
            return
        written = self._written(func, args, kwargs, inputs, outputs)
        if func.namespace in ("c10d", "_c10d_functional"):
            if func.overloadpacket.__name__ not in WAITS:
                self._follow_message(func, args, kwargs, inputs, outputs)
        elif not written or func.overloadpacket in _WRITING_NOTHING:
            return  # views, and uninitialized memory
        elif any(each.is_meta for each in written):
            return
        elif func.overloadpacket in _COPIES and not all(each.is_cuda for each in written):
            self._copied_to_host(inputs, written)
        elif func.overloadpacket in _PLAIN_COPIES and self._is_one_value(written[0], inputs[-1]):
            self._book.put(written[0], self._book.of(inputs[-1]))
        else:
            try:
                is_followed = self._compute(func, args, kwargs, inputs, written)
            except (NotImplementedError, RuntimeError, ValueError, IndexError, TypeError):
                is_followed = False  # a missing CPU kernel, or values that it rejects
            if not is_followed:
                self._lose(inputs, written)

    def _follow_sparse(
        self, func: Any, args: Any, kwargs: Any, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
    ) -> None:
        """Lose what is written from sparse tensors, of which nothing is known but by their indices and values."""
        if func.overloadpacket in _COPIES and any(each.is_cuda for each in inputs) and not outputs[0].is_cuda:
            self._reads.note(False)
        if any(each.alias_info is not None for each in func._schema.returns):
            return  # its indices or values, which are known as they are
        dense, made = ([each for each in of if each.layout is torch.strided] for of in (inputs, outputs))
        written = self._written(func, args, kwargs, dense, made)
        self._lose(dense, [each for each in written if each.is_cuda])

    def _written(
        self, func: Any, args: Any, kwargs: Any, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Return the tensors that the operator writes: new outputs, and arguments marked in its schema."""
        old = {each.untyped_storage()._cdata for each in inputs}
        new = [each for each in outputs if each.untyped_storage()._cdata not in old]
        for place, name in _written_arguments(func):
            new += tensors_of(args[place] if place < len(args) else kwargs.get(name))
        return [each for each in new if each.layout is torch.strided]

    def _copied_to_host(self, inputs: Sequence[torch.Tensor], written: Sequence[torch.Tensor]) -> None:
        sources = [each for each in inputs if each.is_cuda]
        self._note(sources)
        for source, target in zip(sources, written, strict=False):
            if is_small(source):
                target.copy_(self._tensor_on_host(source))

    def _follow_message(
        self, func: Any, args: Any, kwargs: Any, inputs: Sequence[torch.Tensor], results: Sequence[torch.Tensor]
    ) -> None:
        """Follow what NCCL would send; no rank is waited for before a value is used."""
        try:
            sent = self._messages.send(func, args, kwargs, results, self._part)
            if sent is not None:
                self._expect(*sent)
        except (ValueError, RuntimeError, KeyError):  # such as of a group beside which there is no default one
            sent = None
        if sent is None:
            self._lose(inputs, [each for each in (*inputs, *results) if each.is_cuda])

    def _part(self, tensors: Sequence[torch.Tensor]) -> Part | None:
        """Return what this rank gives to a message, unless nothing is known of it or it is large."""
        if all(self._book.of(each) is None for each in tensors) or not self._messages.are_sent(tensors):
            return None
        return Part(self._are_true(tensors), [bytes_of(self._tensor_on_host(each).contiguous()) for each in tensors])

    def _expect(self, message: Message, outputs: Sequence[torch.Tensor]) -> None:
        sizes = Counter[int]()
        for each in outputs:
            sizes[each.untyped_storage()._cdata] += each.nbytes
        parts = [each for each in outputs if sizes[each.untyped_storage()._cdata] < each.untyped_storage().nbytes()]
        self._materialize(parts, parts)
        before = [self._book.of(each) for each in outputs]
        for output, known in zip(outputs, before, strict=True):
            is_whole = all(output is not each for each in parts)
            self._book.put(output, Known(is_whole or (known is not None and known.is_true)))
        start = 0
        for output, known in zip(outputs, before, strict=True):
            if output.numel():
                values = partial(message.values, start, output.shape, output.dtype)
                unsaid = known and known._replace(is_true=False)
                self._book.expect(output, partial(_arrive, on_host(output), values, unsaid))
            start += output.nbytes

    def _lose(self, inputs: Sequence[torch.Tensor], written: Sequence[torch.Tensor]) -> None:
        """Mark new outputs as absent; overwritten ones keep their numbers, which are plausible but not true."""
        old = {each.untyped_storage()._cdata for each in inputs}
        for tensor in written:
            known = self._book.of(tensor)
            is_kept = known is not None and tensor.untyped_storage()._cdata in old
            self._book.put(tensor, known._replace(is_true=False) if is_kept and known is not None else None)

    def _is_one_value(self, target: torch.Tensor, source: torch.Tensor) -> bool:
        """Whether a copy leaves the whole of a memory with one value, in numbers that are the same.

        A copy of a storage is one of bytes, which are not the value of its numbers, but are in their order.
        """
        if not source.is_cuda or source.dtype is not target.dtype or not _is_whole(target):
            return False
        is_same_storage = _is_whole(source) and source.nbytes == target.nbytes
        if is_same_storage and source.is_contiguous() and target.is_contiguous():
            return self._book.repeated_in(source) is not None
        return self._book.fill_of(source) is not None

    def _compute(
        self, func: Any, args: Any, kwargs: Any, inputs: Sequence[torch.Tensor], written: Sequence[torch.Tensor]
    ) -> bool:
        is_random = torch.Tag.nondeterministic_seeded in func.tags
        is_true = self._are_true(inputs) and not is_random
        is_torchs = func.namespace in _TORCHS
        if not is_torchs and any(each.numel() > MOST_FLOATS for each in (*inputs, *written)):
            return False
        if not is_random and self._is_uniform(func, inputs, written):
            return self._compute_uniform(func, args, kwargs, inputs, written, is_true)
        if all(is_small(each) for each in (*inputs, *written)):
            if func.overloadpacket in _SLOW and not is_true:
                return False
            if func.overloadpacket is _aten.topk and not is_true:
                return self._choose(args, written)
            self._materialize(inputs, written)
            state = torch.get_rng_state() if is_random else None
            args, kwargs = self._on_host(args), self._on_host(kwargs)
            if not is_torchs:
                args, kwargs = _mapped((args, kwargs), torch.Tensor, _unexpanded)
            if func.overloadpacket in _PRODUCTS and inputs[0].dtype is torch.float16 and "out" not in kwargs:
                args = _mapped(args, torch.Tensor, torch.Tensor.float)
            result = func(*args, **kwargs)
            if state is not None:
                torch.set_rng_state(state)
            self._write(result, inputs, written, is_true)
            return True
        return self._compute_uniform(func, args, kwargs, inputs, written, is_true)

    def _is_uniform(self, func: Any, inputs: Sequence[torch.Tensor], written: Sequence[torch.Tensor]) -> bool:
        """Whether an operator writes the whole of a memory with one number, however small."""
        if len(written) != 1 or not _is_of_elements(func):
            return False
        (target,) = written
        return (
            target.numel() > 1
            and target.is_floating_point()
            and _is_whole(target)
            and all(
                each.numel() == 1 or (each.is_cuda and self._book.fill_of(each) is not None)
                for each in _read_of(func, inputs)
            )
        )

    def _choose(self, args: Any, written: Sequence[torch.Tensor]) -> bool:
        source, dimension = args[0], args[2] if len(args) > 2 else -1
        values, indices = written
        self._put(values, torch.full((), self._book.fill_of(source) or 1.0, dtype=values.dtype), False)
        self._put(indices, balanced_choice(indices.shape, source.shape[dimension]), False)
        return True

    def _materialize(self, inputs: Sequence[torch.Tensor], written: Sequence[torch.Tensor]) -> None:
        """Fill memory that will be overwritten, since the CPU may write only a part of it."""
        old = {each.untyped_storage()._cdata for each in inputs}
        for tensor in written:
            if tensor.is_cuda and tensor.untyped_storage()._cdata in old:
                known, repeated = self._book.of(tensor), self._book.repeated_in(tensor)
                if repeated is not None:
                    fill, kind = repeated
                    whole = torch.empty(0, dtype=kind, device=tensor.device)
                    whole.set_(tensor.untyped_storage())
                    if not is_small(whole):
                        raise ValueError("a part of what is too large")
                    self._put(whole, torch.full((), fill, dtype=kind), known is not None and known.is_true)

    def _write(
        self, result: Any, inputs: Sequence[torch.Tensor], written: Sequence[torch.Tensor], is_true: bool
    ) -> None:
        """Copy new outputs to the emulated GPU; arguments written in place are there already."""
        old = {each.untyped_storage()._cdata for each in inputs}
        fresh = [each for each in written if each.untyped_storage()._cdata not in old]
        made = tensors_of(result)
        for tensor, values in zip(fresh, made, strict=False):
            if tensor.is_cuda:
                self._put(tensor, values, is_true)
        for tensor in written:
            if tensor.is_cuda and tensor.untyped_storage()._cdata in old:
                self._book.put(tensor, Known(is_true))

    def _compute_uniform(
        self,
        func: Any,
        args: Any,
        kwargs: Any,
        inputs: Sequence[torch.Tensor],
        written: Sequence[torch.Tensor],
        is_true: bool,
    ) -> bool:
        """Compute an operator on uniform tensors, whose result is uniform: one element stands for all."""
        if (value := created_value(func.overloadpacket.__name__, args, written[0].dtype)) is not None:
            self._book.put(written[0], Known(is_true, value))
            return True
        if not _is_of_elements(func):
            return self._reduce_uniform(func, inputs, written, is_true)
        several = [each for each in _read_of(func, inputs) if each.numel() > 1]
        if any(each.is_cuda and self._book.fill_of(each) is None for each in several):
            return False
        is_true = is_true and all(each.is_cuda for each in several)  # the values of large host tensors are unknown
        result = func(*self._sample(args), **self._sample(kwargs))
        made = tensors_of(result)
        for tensor, values in zip(written, made, strict=False):
            value = float(values.reshape(-1)[0])
            self._book.put(tensor, Known(is_true, value) if _is_whole(tensor) else None)
        return True

    def _sample(self, values: Any) -> Any:
        """Return the arguments with one element for each tensor, on the CPU."""

        def of_leaf(leaf: torch.Tensor | torch.device) -> torch.Tensor | torch.device:
            return self._one_element(leaf) if isinstance(leaf, torch.Tensor) else _HOST

        return _mapped(values, (torch.Tensor, torch.device), of_leaf)

    def _one_element(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.numel() == 1:
            return self._tensor_on_host(tensor)
        return torch.full([1] * tensor.dim(), self._book.fill_of(tensor) or 0.0, dtype=tensor.dtype)

    def _reduce_uniform(
        self, func: Any, inputs: Sequence[torch.Tensor], written: Sequence[torch.Tensor], is_true: bool
    ) -> bool:
        if len(inputs) != 1 or len(written) != 1 or (fill := self._book.fill_of(inputs[0])) is None:
            return False
        shrink = inputs[0].numel() / max(written[0].numel(), 1)
        value = uniform_result(func.overloadpacket.__name__, fill, shrink)
        if value is None:
            return False
        self._book.put(written[0], Known(is_true, float(value)))
        return True


def _arrive(
    memory: torch.Tensor,
    values: Callable[[], tuple[torch.Tensor, bool] | None],
    unsaid: Known | None,
    known: Known | None,
) -> Known | None:
    """Put what a message brings where it belongs, and return what is known there from now on."""
    found = values()
    if found is None or known is None:
        return unsaid
    memory.copy_(found[0])
    return known._replace(is_true=known.is_true and found[1])


_FILLING = (
    *(_aten.zero_, _aten.zeros_like, _aten.ones_like, _aten.fill_, _aten.full_like),
    *(_aten._to_copy, _aten.copy_, _aten.clone),
)
