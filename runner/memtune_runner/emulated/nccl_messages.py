"""The contents of messages over NCCL, which carries nothing on the emulated GPU.

If each rank is a process, it leaves its part of a message in the store of the rendezvous, and takes the parts of the
others from there when a value is first used, so that it waits nowhere that it would not on a GPU. Messages are small:
the sizes, counts and flags that steer a script, not its weights. Where one process stands for all ranks, every rank's
part is its own, and results of more than one part are made up.
"""

from __future__ import annotations

import ctypes
import operator
import pickle
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial, reduce
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch

from memtune_runner.rank.tensors import tensors_of

_distributed: Any = torch.distributed  # of which some builds have nothing
# The most bytes sent per tensor: as many as the emulated GPU copies, and few of floating-point numbers.
_MOST_BYTES, _MOST_BYTES_OF_FLOATS = 1 << 20, 1 << 12
# The limits of parts that a rank leaves for others that may never read them: their number between the same ranks, and
# their bytes.
MOST_UNREAD, _MOST_UNREAD_BYTES = 1 << 10, 1 << 26
# In the order of NCCL's numbers. The last one is the average, a sum at first.
_REDUCTIONS: tuple[Callable[[Any, Any], Any], ...] = (
    operator.add, operator.mul, torch.maximum, torch.minimum, operator.add,
)  # fmt: skip
_AVERAGE = 4
# The operators' names for their arguments.
_INPUTS = ("input_tensors", "input_tensor", "input_list", "inputs", "input", "tensors")
_OUTPUTS = ("output_tensors", "output_tensor", "output_lists", "output", "outputs", "out", "tensors")
_ROOTS = ("root_rank", "src", "dst")
# Operators that wait, and change nothing.
WAITS = ("barrier", "monitored_barrier_", "wait_tensor", "_wrap_tensor_autograd", "check_for_nan")


class _Kind(NamedTuple):
    """The senders and receivers of the parts, and whether each rank gets a piece of its own."""

    from_root: bool = False
    to_root: bool = False
    in_pieces: bool = False
    is_reduced: bool = False


_ALL_TO_ALL = _Kind(in_pieces=True)
_KINDS = {
    name: kind
    for kind, names in {
        _Kind(is_reduced=True): "allreduce_ allreduce_coalesced_ all_reduce all_reduce_ all_reduce_coalesced",
        _Kind(): "allgather_ _allgather_base_ allgather_into_tensor_coalesced_ all_gather_into_tensor "
        "all_gather_into_tensor_out all_gather_into_tensor_coalesced",
        _Kind(in_pieces=True, is_reduced=True): "reduce_scatter_ _reduce_scatter_base_ reduce_scatter_tensor "
        "reduce_scatter_tensor_out",
        _ALL_TO_ALL: "alltoall_ alltoall_base_ all_to_all_single",
        _Kind(from_root=True): "broadcast_ broadcast send recv_",
        _Kind(from_root=True, in_pieces=True): "scatter_",
        _Kind(to_root=True, is_reduced=True): "reduce_",
        _Kind(to_root=True): "gather_",
    }.items()
    for name in names.split()
}


class Part(NamedTuple):
    """One rank's part of a message: the bytes of its tensors, or those for each rank."""

    is_true: bool
    pieces: list[bytes]


class Message:
    """A message of which this rank gets something; the parts of others are waited for where they are needed."""

    def __init__(
        self, kind: _Kind, outputs: Sequence[torch.Tensor], rank: int, parts: Callable[[], list[Part | None]]
    ) -> None:
        self._kind, self._rank, self._parts = kind, rank, parts
        self._size, self._dtypes = sum(each.nbytes for each in outputs), {each.dtype for each in outputs}
        self._operation = ctypes.CDLL(None).emulated_reduction() if kind.is_reduced else 0

    def values(self, start: int, shape: torch.Size, dtype: torch.dtype) -> tuple[torch.Tensor, bool] | None:
        """Return the content of an output that begins at a byte of all, and whether it is true; None if unknown."""
        if self._size > _MOST_BYTES or self._arrived is None:
            return None
        data, is_true = self._arrived
        return torch.frombuffer(data, dtype=dtype, count=shape.numel(), offset=start).reshape(shape), is_true

    @cached_property
    def _arrived(self) -> tuple[bytearray, bool] | None:
        parts = self._parts()
        known = [each for each in parts if each is not None]
        if len(known) < len(parts):
            return None
        pieces = [each.pieces[self._rank : self._rank + 1] if self._kind.in_pieces else each.pieces for each in known]
        if self._kind.is_reduced:
            data = self._reduced([b"".join(each) for each in pieces])
        else:
            data = bytearray().join(piece for of_each in zip(*pieces, strict=False) for piece in of_each)
        return (data, all(each.is_true for each in known)) if len(data) == self._size else None

    def _reduced(self, parts: Sequence[bytes]) -> bytearray:
        if len(self._dtypes) != 1 or not 0 <= self._operation < len(_REDUCTIONS):
            return bytearray()
        (dtype,) = self._dtypes
        numbers = [torch.frombuffer(bytearray(each), dtype=dtype) for each in parts]
        try:
            result = reduce(_REDUCTIONS[self._operation], numbers)
        except RuntimeError:
            return bytearray()  # 8 bits, which the CPU does not add, or ranks that disagree on the size
        if self._operation == _AVERAGE:
            result = torch.div(result, len(parts), rounding_mode=None if dtype.is_floating_point else "trunc")
        return bytearray(bytes_of(result))


class Messages:
    """The messages of this process."""

    def __init__(self, stands_for_all: bool) -> None:
        self._stands_for_all = stands_for_all
        self._counts: Counter[str] = Counter()
        self._unread: defaultdict[str, Unread] = defaultdict(Unread)

    def are_alike(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether an operator is a message in which all ranks take part as this one does, since no other runs."""
        if not self._stands_for_all or func.namespace != "c10d" or func.overloadpacket.__name__ in WAITS:
            return False
        group = _group_of(_named(func, args, kwargs))
        return group is not None and group.size() > 1

    def are_sent(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether tensors are so small that their values are part of a message."""
        most = _MOST_BYTES if self._stands_for_all else _MOST_BYTES_OF_FLOATS
        return all(each.nbytes <= (most if each.is_floating_point() else _MOST_BYTES) for each in tensors)

    def send(
        self,
        func: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        results: Sequence[torch.Tensor],
        part_of: Callable[[Sequence[torch.Tensor]], Part | None],
    ) -> tuple[Message, list[torch.Tensor]] | None:
        """Leave this rank's part; return the message and where it goes to, or None if its kind is not known here."""
        name, named = func.overloadpacket.__name__, _named(func, args, kwargs)
        kind, group = _KINDS.get(name), _group_of(named)
        if kind is None or group is None:
            return None
        rank, size = group.rank(), group.size()
        inputs = tensors_of(next((named[each] for each in _INPUTS if each in named), ()))
        outputs = tensors_of(next((named[each] for each in _OUTPUTS if each in named), results))
        root = next((named[each] for each in _ROOTS if each in named), 0)
        senders = [root] if kind.from_root else list(range(size))
        receivers = [root] if kind.to_root else list(range(size))
        if name in ("send", "recv_"):
            senders, receivers = ([rank], [root]) if name == "send" else ([root], [rank])
        part = part_of(inputs) if self._stands_for_all or rank in senders else None
        if part is not None and kind.in_pieces and len(inputs) == 1:
            part = part._replace(pieces=_split(part.pieces[0], named.get("input_split_sizes") or [1] * size))
        if rank not in receivers:
            outputs = []
        if not self._stands_for_all:
            key = f"{group.group_name}/{senders[0]}/{receivers[0]}/{len(senders)}/{len(receivers)}"
            self._counts[key] += 1
            exchange = Exchange(f"memtune/{key}/{self._counts[key]}", rank, senders, receivers)
            if size_left := exchange.leave(part):
                self._unread[key].add(exchange, size_left)
            return Message(kind, outputs, rank, partial(exchange.parts, part)), outputs
        if kind is _ALL_TO_ALL:
            kind, senders = _Kind(), [rank]  # it is sent as much as it sends, the mean of all ranks
        alike = part and part._replace(is_true=part.is_true and size == 1)
        return Message(kind, outputs, rank, lambda: [alike] * len(senders)), outputs


class Exchange:
    """The parts of one message in the store of the rendezvous."""

    def __init__(self, key: str, rank: int, senders: Sequence[int], receivers: Sequence[int]) -> None:
        self._key, self._rank, self._senders, self._receivers = key, rank, senders, receivers
        self._store = _distributed.distributed_c10d._get_default_store()

    def leave(self, part: Part | None) -> int:
        """Leave this rank's part for the others; return its bytes."""
        if self._rank not in self._senders or not self._readers():
            return 0
        data = pickle.dumps(part and tuple(part))
        with suppress(RuntimeError):  # torch's fake process group has a store that stores nothing
            self._store.set(f"{self._key}/{self._rank}", data)
        return len(data)

    def forget(self) -> None:
        """Leave nothing in place of this rank's part unless all have read it: a later reader learns of no value."""
        with suppress(RuntimeError):
            if self._store.check([f"{self._key}/{self._rank}"]):
                self.leave(None)

    def parts(self, own: Part | None) -> list[Part | None]:
        """Wait for all parts; the last reader takes them away. Where a rank reads nothing of them, they stay."""
        try:
            found = [own if each == self._rank else self._part_of(each) for each in self._senders]
            if self._rank in self._readers() and self._store.add(f"{self._key}/read", 1) == len(self._readers()):
                for each in (*self._senders, "read"):
                    self._store.delete_key(f"{self._key}/{each}")
        except RuntimeError:
            return [None]  # the store ends with the rank that has it, or stores nothing
        return found

    def _part_of(self, rank: int) -> Part | None:
        part = pickle.loads(self._store.get(f"{self._key}/{rank}"))
        return part and Part(*part)

    def _readers(self) -> list[int]:
        return [each for each in self._receivers if self._senders != [each]]


class Unread:
    """The parts that this rank has left for the same ranks, which a script that only sends would heap up."""

    def __init__(self) -> None:
        self._left: deque[tuple[Exchange, int]] = deque()
        self._bytes = 0

    def add(self, exchange: Exchange, size: int) -> None:
        """Add one, and forget the oldest where there are too many."""
        self._left.append((exchange, size))
        self._bytes += size
        while len(self._left) > MOST_UNREAD or self._bytes > _MOST_UNREAD_BYTES:
            oldest, size = self._left.popleft()
            self._bytes -= size
            oldest.forget()


def bytes_of(tensor: torch.Tensor) -> bytes:
    """Return the bytes of a tensor in the host's memory."""
    return ctypes.string_at(tensor.data_ptr(), tensor.nbytes) if tensor.numel() else b""


def _split(data: bytes, sizes: Sequence[int]) -> list[bytes]:
    """Split into pieces of these proportions."""
    unit = len(data) // max(sum(sizes), 1)
    return [data[start * unit : end * unit] for start, end in pairwise(accumulate(sizes, initial=0))]


def _named(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)} | dict(kwargs)


def _group_of(named: Mapping[str, Any]) -> Any:
    """Return the process group of an operator, which knows it as an object or by its name."""
    group = named.get("process_group", named.get("group_name"))
    if isinstance(group, str):
        return _distributed.distributed_c10d._resolve_process_group(group)
    return _distributed.ProcessGroup.unbox(group) if isinstance(group, torch.ScriptObject) else group
