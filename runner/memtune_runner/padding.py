"""Makes a batch as long as the job's sequences: a probe must see the longest one that there can be."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

import torch
from torch.utils._pytree import MappingKey, tree_flatten_with_path, tree_map_with_path

# Beside its tokens a batch may hold those of a decoder, which have a length of their own.
_TOKENS = ("input_ids", "decoder_input_ids", "labels")
# What fills the new columns; any other one repeats its last. No special token, whose number a model may count. A mask
# of ones, because masked positions may be left out by the attention; a label that counts, because an ignored one may
# be left out by the loss.
_FILLERS = {"input_ids": 0, "decoder_input_ids": 0, "labels": 0, "attention_mask": 1, "decoder_attention_mask": 1}
_POSITIONS = ("position_ids", "decoder_position_ids")
# Where the sequences of a flattened batch begin, as attention kernels are told.
_STARTS = ("cu_seq_lens_q", "cu_seqlens_q", "cu_seqlens")


def padded(batch: Any, length: int) -> Any:
    """The batch with its token columns filled up to ``length``: matrices of whole numbers, as long as its tokens.

    Tokens are known by name, else they are the longest matrices. A batch whose attention was worked out for its length
    already stays as it is.
    """
    if isinstance(batch, MutableMapping) and not isinstance(batch, dict):
        batch.update(padded(dict(batch.items()), length))  # transformers' own mappings are none of torch's trees
        return batch
    columns = list(_columns(batch))
    if any(_is_worked_out(name, each) for name, each in columns):
        return batch
    lengths = {each for each in _lengths(columns) if each < length}

    def longer(path: tuple[Any, ...], each: Any) -> Any:
        name = _name(path)
        return _wider(name, each, length) if _is_column(name, each) and each.shape[-1] in lengths else each

    return tree_map_with_path(longer, batch)


def _columns(batch: Any) -> Iterator[tuple[str, torch.Tensor]]:
    for path, each in tree_flatten_with_path(batch)[0]:
        if isinstance(each, torch.Tensor):
            yield _name(path), each


def _name(path: tuple[Any, ...]) -> str:
    last = path[-1] if path else None
    return str(last.key) if isinstance(last, MappingKey) else ""


def _lengths(columns: list[tuple[str, torch.Tensor]]) -> set[int]:
    """How long the batch's sequences of tokens are."""
    matrices = [(name, each.shape[1]) for name, each in columns if each.dim() == 2 and _is_column(name, each)]
    if any(name == _TOKENS[0] for name, _ in matrices):
        return {length for name, length in matrices if name in _TOKENS}
    return {max((length for _, length in matrices), default=0)}


def _is_column(name: str, each: Any) -> bool:
    """Whether these are whole numbers in columns; positions may count in several directions at once."""
    is_whole = isinstance(each, torch.Tensor) and not each.is_floating_point()
    return is_whole and (each.dim() == 2 or (each.dim() > 2 and name in _POSITIONS))


def _is_worked_out(name: str, each: torch.Tensor) -> bool:
    return name in _STARTS or (name == "attention_mask" and each.dim() > 2)


def _wider(name: str, column: torch.Tensor, length: int) -> torch.Tensor:
    missing = length - column.shape[-1]
    more = column[..., -1:].expand(*column.shape[:-1], missing)
    if name in _FILLERS:
        more = torch.full_like(more, _FILLERS[name])
    elif name in _POSITIONS:
        # They go on, but not beyond what the model is known to have.
        further = more + torch.arange(1, missing + 1, device=column.device, dtype=column.dtype)
        more = further.clamp(max=max(length - 1, int(column.max())))
    return torch.cat([column, more], dim=-1)
