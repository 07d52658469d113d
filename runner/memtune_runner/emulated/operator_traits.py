"""What the mode that follows values asks of an operator: found once for each, since thousands run in a step."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

_aten = torch.ops.aten
_SCALARS = (_aten._local_scalar_dense, _aten.is_nonzero, _aten.equal)
_COPIES = (_aten._to_copy, _aten.copy_, _aten.clone, _aten._foreach_copy_)
_EMPTY = (_aten.empty, _aten.empty_like, _aten.empty_strided, _aten.new_empty, _aten.new_empty_strided)
# Operators that fill weights with random numbers.
_DRAWING = (_aten.normal_, _aten.uniform_)
_INDEXING = (_aten.index, _aten.index_put, _aten.index_put_, _aten._index_put_impl_)
# They give elements of their first argument.
_PICKING = (_aten.index, _aten.index_select, _aten.gather, _aten.embedding)
# Not worth the minutes that the CPU takes in half precision, unless the numbers are true.
_SLOW = (_aten.convolution, _aten.cudnn_convolution)
# A CPU takes a hundredth of the time for them in single precision, in which a GPU adds up as well.
_PRODUCTS = (_aten.mm, _aten.addmm, _aten.bmm, _aten.baddbmm)
# They read nothing of what they write, whose type may be another than that of the numbers there.
_OVERWRITING = (_aten.zero_, _aten.fill_, _aten.copy_)
_FILLING = (
    *(_aten.zero_, _aten.zeros_like, _aten.ones_like, _aten.fill_, _aten.full_like),
    *(_aten._to_copy, _aten.copy_, _aten.clone),
)


@dataclass(frozen=True, slots=True)
class Traits:
    """Of one overload of an operator. ``written`` are the places and names of the arguments that it writes."""

    is_view: bool
    """It gives parts of its inputs, and writes nothing."""
    is_message: bool
    is_torchs: bool
    """Others, most of them a library's, may take minutes on the CPU for many integers, and ignore strides."""
    is_random: bool
    is_shaped_by_values: bool
    """On a GPU without values, the shape of its output would be arbitrary."""
    is_of_elements: bool
    """It gives one number wherever its inputs have one."""
    returns_inputs: bool
    lifts: bool
    """It gives the result of torch.tensor(), whose copy from the host no mode sees."""
    reads_scalar: bool
    draws: bool
    converts: bool
    indexes: bool
    picks: bool
    """It gives elements of its first argument."""
    copies: bool
    copies_plainly: bool
    overwrites: bool
    writes_no_values: bool
    """It gives a tensor another memory, of which as much is known as before, or writes nothing to what it makes."""
    is_slow: bool
    is_product: bool
    written: tuple[tuple[int, str], ...]


@cache
def traits_of(func: Any) -> Traits:
    """Return those of an overload."""
    packet, arguments, returns = func.overloadpacket, func._schema.arguments, func._schema.returns
    written = tuple(
        (place, each.name)
        for place, each in enumerate(arguments)
        if each.alias_info is not None and each.alias_info.is_write
    )
    is_message = func.namespace in ("c10d", "_c10d_functional")
    gives_parts = bool(returns) and all(each.alias_info is not None for each in returns) and not written
    return Traits(
        is_view=gives_parts and not is_message and packet is not _aten.lift_fresh,
        is_message=is_message,
        is_torchs=func.namespace in ("aten", "prims"),
        is_random=torch.Tag.nondeterministic_seeded in func.tags,
        # Indexing takes a size from masks alone, which are made integers before it.
        is_shaped_by_values=torch.Tag.dynamic_output_shape in func.tags and packet not in _INDEXING,
        is_of_elements=torch.Tag.pointwise in func.tags or packet in _FILLING,
        returns_inputs=any(each.alias_info is not None for each in returns),
        lifts=packet is _aten.lift_fresh,
        reads_scalar=packet in _SCALARS,
        draws=packet in _DRAWING,
        converts=packet is _aten._to_copy,
        indexes=packet in _INDEXING,
        picks=packet in _PICKING,
        copies=packet in _COPIES,
        copies_plainly=packet in (_aten.copy_, _aten.clone),
        overwrites=packet in _OVERWRITING,
        writes_no_values=packet in (*_EMPTY, _aten.set_),
        is_slow=packet in _SLOW,
        is_product=packet in _PRODUCTS,
        written=written,
    )
