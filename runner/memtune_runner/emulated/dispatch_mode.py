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

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from memtune_runner.emulated.operator_traits import Traits, traits_of
from memtune_runner.emulated.unfilled_weights import UnfilledWeights
from memtune_runner.emulated.value_reads import ValueReads
from memtune_runner.rank.tensors import tensors_of

_aten = torch.ops.aten
_HOST = torch.device("cpu")
_record: Callable[[bool], None] = torch._C._autograd._enable_record_function
_mode_of: Callable[[Any], Any] = torch._C._get_dispatch_mode
_FAKE = torch._C._TorchDispatchModeKey.FAKE
_MOST_MADE = 4096
# The types of arguments that say by themselves what an operator does with them.
_TOLD = (bool, int, float, str, torch.dtype, torch.device, torch.layout, torch.memory_format)


def _mapped(values: Any, kinds: Any, function: Callable[[Any], Any]) -> Any:
    """Apply a function to what is of these kinds in an operator's arguments or results."""
    if isinstance(values, kinds):
        return function(values)
    if type(values) in (tuple, list):
        return type(values)([_mapped(each, kinds, function) for each in values])
    if type(values) is dict:
        return {name: _mapped(each, kinds, function) for name, each in values.items()}
    return values


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute with one thread: others spin for longer than they compute on what is small."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _is_told(number: float) -> bool:
    """Whether a number is equal to itself alone, as NaN is not, nor the one zero that equals the other."""
    return number == number and (number != 0.0 or math.copysign(1.0, number) > 0)


def _is_whole(tensor: torch.Tensor) -> bool:
    """Whether a tensor is all of its storage."""
    return tensor.nbytes == tensor.untyped_storage().nbytes()


def _is_filled(written: Sequence[torch.Tensor]) -> bool:
    """Whether an operator that gives one number, however small, fills a whole memory with it."""
    if len(written) != 1:
        return False
    (target,) = written
    return target.numel() > 1 and target.is_floating_point() and _is_whole(target)


def _unexpanded(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous() if 0 in tensor.stride() else tensor


def _sparse(places: torch.Tensor, values: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    return torch.sparse_coo_tensor(places, values, shape, is_coalesced=True, check_invariants=False)


@cache
def _is_plain(kind: Any) -> bool:
    """Whether tensors of a class are handled here; the operators inside others arrive later."""
    return kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__


def _read_of(traits: Traits, inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """Return the inputs whose values matter."""
    return inputs[1:] if traits.overwrites else inputs


class ValueMode(TorchDispatchMode):
    """Gives tensors the values that a script reads, as this module's head says."""

    def __init__(self, reads: ValueReads, unfilled: UnfilledWeights, stands_for_all: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves the base class untyped
        self._reads, self._unfilled, self._messages = reads, unfilled, Messages(stands_for_all)
        self._book = KnownValues()
        self._made: dict[Any, list[float]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # suspended in what is compiled; keeping the compiler out would import it, which takes a second

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run the operator on its device and record what is known of its results."""
        if _mode_of(_FAKE) is not None:
            return func(*args, **(kwargs or {}))  # only shapes are wanted
        for kind in types:
            if not _is_plain(kind):
                return NotImplemented
        traits = traits_of(func)
        if traits.is_view:
            return func(*args, **(kwargs or {}))
        return self._run(func, traits, args, dict(kwargs) if kwargs else {})

    def _run(self, func: Any, traits: Traits, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        inputs = tensors_of(args)
        if kwargs:
            inputs += tensors_of(kwargs)
        if traits.reads_scalar and any(each.is_cuda for each in inputs):
            return self._read(func, args, kwargs, inputs)
        if traits.is_shaped_by_values and any(each.is_cuda for each in inputs):
            return self._shaped_by_values(func, args, kwargs, inputs)
        if (left := self._left_unfilled(traits, inputs, kwargs)) is not None:
            return left
        if traits.indexes:
            args = (args[0], self._numbers_of_masks(args[1]), *args[2:])
        result = func(*args, **kwargs)
        outputs = tensors_of(result)
        is_strided, is_on_gpu = True, False
        for each in (*inputs, *outputs):
            is_strided &= each.layout is torch.strided
            is_on_gpu |= each.is_cuda
        _record(False)  # a trace of the step, or a profiler of the script, sees nothing of what follows
        try:
            if not is_strided:
                self._follow_sparse(traits, args, kwargs, inputs, outputs)
            elif is_on_gpu:
                self._follow(func, traits, args, kwargs, inputs, outputs)
            else:
                self._follow_on_host(func, traits, args, kwargs, inputs)
        finally:
            _record(True)
        return result

    def _left_unfilled(
        self, traits: Traits, inputs: Sequence[torch.Tensor], kwargs: Mapping[str, Any]
    ) -> torch.Tensor | None:
        """Return a large tensor of the host that was to be filled with random numbers, or made of one that was."""
        made = None
        if traits.draws and inputs[0].device == _HOST and not is_small(inputs[0]):
            made = inputs[0]
        elif traits.converts and kwargs.get("device") in (None, _HOST) and self._unfilled.has(inputs[0]):
            made = torch.empty_like(inputs[0], dtype=kwargs.get("dtype"))
        if made is not None:
            self._unfilled.leave(made)
        return made

    def _follow_on_host(
        self, func: Any, traits: Traits, args: Any, kwargs: Any, inputs: Sequence[torch.Tensor]
    ) -> None:
        if self._unfilled:
            self._unfilled.written(self._written(traits, args, kwargs, inputs, []))
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
        for each in tensors:
            if each.is_cuda and ((known := self._book.of(each)) is None or not known.is_true):
                return False
        return True

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

    def _fill(self, tensor: torch.Tensor, value: float, is_true: bool) -> None:
        """Record that a tensor has one number; of a part of a memory, nothing is known any more."""
        self._book.put(tensor, Known(is_true, value) if _is_whole(tensor) else None)

    def _follow(
        self,
        func: Any,
        traits: Traits,
        args: Any,
        kwargs: Any,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
    ) -> None:
        if traits.lifts:
            # The result of torch.tensor(), whose copy from the host no mode sees.
            self._book.put(outputs[0], Known(True) if is_small(outputs[0]) else None)
            return
        written = self._written(traits, args, kwargs, inputs, outputs)
        if traits.is_message:
            if func.overloadpacket.__name__ not in WAITS:
                self._follow_message(func, args, kwargs, inputs, outputs)
        elif not written or traits.writes_no_values:
            return  # parts of inputs that it does not declare as such, and uninitialized memory
        elif any(each.is_meta for each in written):
            return
        elif traits.copies and not all(each.is_cuda for each in written):
            self._copied_to_host(inputs, written)
        elif traits.copies_plainly and self._is_one_value(written[0], inputs[-1]):
            self._book.put(written[0], self._book.of(inputs[-1]))
        else:
            try:
                is_followed = self._compute(func, traits, args, kwargs, inputs, written)
            except (NotImplementedError, RuntimeError, ValueError, IndexError, TypeError):
                is_followed = False  # a missing CPU kernel, or values that it rejects
            if not is_followed:
                self._lose(inputs, written)

    def _follow_sparse(
        self, traits: Traits, args: Any, kwargs: Any, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
    ) -> None:
        """Lose what is written from sparse tensors, of which nothing is known but by their indices and values."""
        if traits.copies and any(each.is_cuda for each in inputs) and not outputs[0].is_cuda:
            self._reads.note(False)
        if traits.returns_inputs:
            return  # its indices or values, which are known as they are
        dense, made = ([each for each in of if each.layout is torch.strided] for of in (inputs, outputs))
        written = self._written(traits, args, kwargs, dense, made)
        self._lose(dense, [each for each in written if each.is_cuda])

    def _written(
        self, traits: Traits, args: Any, kwargs: Any, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Return the tensors that the operator writes: new outputs, and arguments marked in its schema."""
        old = {each.untyped_storage()._cdata for each in inputs}
        new = [each for each in outputs if each.untyped_storage()._cdata not in old]
        for place, name in traits.written:
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
        self,
        func: Any,
        traits: Traits,
        args: Any,
        kwargs: Any,
        inputs: Sequence[torch.Tensor],
        written: Sequence[torch.Tensor],
    ) -> bool:
        is_true = self._are_true(inputs) and not traits.is_random
        if not traits.is_torchs and any(each.numel() > MOST_FLOATS for each in (*inputs, *written)):
            return False
        if traits.is_of_elements and not traits.is_random and _is_filled(written):
            asked = self._described(func, args, kwargs)
            if asked in self._made or self._are_uniform(_read_of(traits, inputs)):
                return self._compute_elements(func, asked, args, kwargs, written, is_true)
        if all(is_small(each) for each in (*inputs, *written)):
            if traits.is_slow and not is_true:
                return False
            if func.overloadpacket is _aten.topk and not is_true:
                return self._choose(args, written)
            self._materialize(inputs, written)
            state = torch.get_rng_state() if traits.is_random else None
            args, kwargs = self._on_host(args), self._on_host(kwargs)
            if not traits.is_torchs:
                args, kwargs = _mapped((args, kwargs), torch.Tensor, _unexpanded)
            if traits.is_product and inputs[0].dtype is torch.float16 and "out" not in kwargs:
                args = _mapped(args, torch.Tensor, torch.Tensor.float)
            with _one_thread():
                result = func(*args, **kwargs)
                self._write(result, inputs, written, is_true)
            if state is not None:
                torch.set_rng_state(state)
            return True
        return self._compute_uniform(func, traits, args, kwargs, inputs, written, is_true)

    def _are_uniform(self, tensors: Sequence[torch.Tensor]) -> bool:
        return all(each.numel() == 1 or (each.is_cuda and self._book.fill_of(each) is not None) for each in tensors)

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
        traits: Traits,
        args: Any,
        kwargs: Any,
        inputs: Sequence[torch.Tensor],
        written: Sequence[torch.Tensor],
        is_true: bool,
    ) -> bool:
        """Compute an operator on uniform tensors, whose result is uniform."""
        if (value := created_value(func.overloadpacket.__name__, args, written[0].dtype)) is not None:
            self._fill(written[0], value, is_true)
            return True
        if traits.picks and (fill := self._book.fill_of(args[0])) is not None:
            self._fill(written[0], fill, is_true)
            return True
        if not traits.is_of_elements:
            return self._reduce_uniform(func, inputs, written, is_true)
        several = [each for each in _read_of(traits, inputs) if each.numel() > 1]
        if any(each.is_cuda and self._book.fill_of(each) is None for each in several):
            return False
        is_true = is_true and all(each.is_cuda for each in several)  # the values of large host tensors are unknown
        asked = None if traits.is_random else self._described(func, args, kwargs)
        return self._compute_elements(func, asked, args, kwargs, written, is_true)

    def _compute_elements(
        self,
        func: Any,
        asked: tuple[Any, ...] | None,
        args: Any,
        kwargs: Any,
        written: Sequence[torch.Tensor],
        is_true: bool,
    ) -> bool:
        """Compute an operator on equal elements, unless it was ``asked`` before: one of each tensor stands for all."""
        if (made := self._made.get(asked)) is None:
            result = func(*self._sample(args), **self._sample(kwargs))
            made = [float(values.reshape(-1)[0]) for values in tensors_of(result)]
            if asked is not None:
                if len(self._made) == _MOST_MADE:  # such as of factors that change with each step
                    self._made.clear()
                self._made[asked] = made
        for tensor, value in zip(written, made, strict=False):
            self._fill(tensor, value, is_true)
        return True

    def _described(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, ...] | None:
        """Return all that the result of an operator on equal elements depends on; None if that cannot be told."""
        found = [func, torch.get_default_dtype(), *kwargs]
        is_all = self._describe(args, found) and self._describe(kwargs.values(), found)
        return tuple(found) if is_all else None

    def _describe(self, values: Iterable[Any], found: list[Any]) -> bool:
        for value in values:
            kind = type(value)
            if isinstance(value, torch.Tensor):
                if not value.is_cuda or (fill := self._book.fill_of(value)) is None or not _is_told(fill):
                    return False
                found += value.dtype, fill, value.dim() == 0
            elif kind in (list, tuple):
                found.append(len(value))
                if not self._describe(value, found):
                    return False
            elif kind is float and not _is_told(value):
                return False
            elif value is None or kind in _TOLD:
                found += kind, value
            else:
                return False
        return True

    def _sample(self, values: Any) -> Any:
        """Return the arguments with one element for each tensor, on the CPU."""

        def of_leaf(leaf: torch.Tensor | torch.device) -> torch.Tensor | torch.device:
            return self._one_element(leaf) if isinstance(leaf, torch.Tensor) else _HOST

        return _mapped(values, (torch.Tensor, torch.device), of_leaf)

    def _one_element(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.numel() == 1:
            return self._tensor_on_host(tensor)
        fill = self._book.fill_of(tensor)  # none where the tensor is only written
        return torch.full([1] * tensor.dim(), 0.0 if fill is None else fill, dtype=tensor.dtype)

    def _reduce_uniform(
        self, func: Any, inputs: Sequence[torch.Tensor], written: Sequence[torch.Tensor], is_true: bool
    ) -> bool:
        if len(inputs) != 1 or len(written) != 1 or (fill := self._book.fill_of(inputs[0])) is None:
            return False
        shrink = inputs[0].numel() / max(written[0].numel(), 1)
        value = uniform_result(func.overloadpacket.__name__, fill, shrink)
        if value is None:
            return False
        self._fill(written[0], float(value), is_true)
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
