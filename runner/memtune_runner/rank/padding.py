"""Pads a batch to the job's sequence length, since a probe must measure the longest batch possible."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from memtune_runner.rank.batch_tree import changed, columns

# Fill values of new columns; other columns repeat their last value. 0 is no special token, which a model might count.
# The mask is 1, because attention may skip masked positions, and the label counts, because the loss may skip ignored
# ones.
_FILLERS = {"input_ids": 0, "decoder_input_ids": 0, "labels": 0, "attention_mask": 1, "decoder_attention_mask": 1}
_DECODERS = "decoder_"
_POSITIONS = ("position_ids", "decoder_position_ids")
# The offsets of the sequences in a flattened batch, as attention kernels take them.
_STARTS = ("cu_seq_lens_q", "cu_seqlens_q", "cu_seqlens")


class _Lengths(NamedTuple):
    """The lengths of a batch's sequences: those of any column, and those that only a decoder's columns have."""

    any_column: set[int]
    of_decoder: set[int]


def padded(batch: Any, length: int, names_tell: bool = False) -> Any:
    """Pad the token columns of a batch to ``length``: integer matrices that are as long as its tokens.

    ``names_tell``: names mean what they mean to a transformers model. Labels then are tokens, since an encoder-decoder
    may have no other decoder input; integer class labels look the same and are padded too. Without a known name nothing
    is padded.

    A custom loop may call anything labels. There they are tokens if they are at least as long as ``input_ids`` or as
    long as a decoder's column; shorter ones stay unchanged. Without ``input_ids``, the longest matrices are the tokens.

    A batch whose attention metadata already fits its length stays unchanged.
    """
    found = list(columns(batch))
    if any(_is_worked_out(name, each) for name, each in found):
        return batch
    lengths = _lengths(found, names_tell)

    def longer(name: str, each: torch.Tensor) -> torch.Tensor:
        is_short = _is_column(name, each) and each.shape[-1] < length
        return _wider(name, each, length) if is_short and _holds_tokens(name, each, lengths) else each

    return changed(batch, longer)


def _lengths(found: list[tuple[str, torch.Tensor]], names_tell: bool) -> _Lengths:
    matrices = [(name, each.shape[1]) for name, each in found if each.dim() == 2 and _is_column(name, each)]
    tokens = _named(matrices, "input_ids")
    decoders = _named(matrices, "decoder_input_ids")
    labels = _named(matrices, "labels")
    if not tokens:
        longest = {max((length for _, length in matrices), default=0)}
        return _Lengths(decoders | labels if names_tell else longest, set())
    if not names_tell:
        beside = {length for name, length in matrices if name.startswith(_DECODERS)}
        labels = {length for length in labels if length >= min(tokens) or length in beside}
    return _Lengths(tokens, decoders | labels)


def _named(matrices: Iterable[tuple[str, int]], name: str) -> set[int]:
    return {length for each, length in matrices if each == name}


def _holds_tokens(name: str, column: torch.Tensor, lengths: _Lengths) -> bool:
    is_decoders = name == "labels" or name.startswith(_DECODERS)
    return column.shape[-1] in (lengths.any_column | lengths.of_decoder if is_decoders else lengths.any_column)


def _is_column(name: str, each: Any) -> bool:
    """Whether the tensor holds integer columns; positions may have several dimensions."""
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
        # Positions continue, but not beyond those that the model is known to have.
        further = more + torch.arange(1, missing + 1, device=column.device, dtype=column.dtype)
        more = further.clamp(max=max(length - 1, int(column.max())))
    return torch.cat([column, more], dim=-1)
