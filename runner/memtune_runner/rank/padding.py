"""Makes a batch as long as the job's sequences: a probe must see the longest one that there can be."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from memtune_runner.rank.batch_tree import changed, columns

# What fills the new columns; any other one repeats its last. No special token, whose number a model may count. A mask
# of ones, because masked positions may be left out by the attention; a label that counts, because an ignored one may
# be left out by the loss.
_FILLERS = {"input_ids": 0, "decoder_input_ids": 0, "labels": 0, "attention_mask": 1, "decoder_attention_mask": 1}
_DECODERS = "decoder_"
_POSITIONS = ("position_ids", "decoder_position_ids")
# Where the sequences of a flattened batch begin, as attention kernels are told.
_STARTS = ("cu_seq_lens_q", "cu_seqlens_q", "cu_seqlens")


class _Lengths(NamedTuple):
    """How long a batch's sequences are: what any column is as long as, and what only a decoder's own columns are."""

    any_column: set[int]
    of_decoder: set[int]


def padded(batch: Any, length: int, names_tell: bool = False) -> Any:
    """The batch with its token columns filled up to ``length``: matrices of whole numbers, as long as its tokens.

    ``names_tell`` says that a name means what it means to a model of transformers. Labels are tokens then, since an
    encoder-decoder's may be all that there is of its decoder; whole numbers that stand for classes look the same, so
    they are padded, too. Where no name is known nothing is padded.

    A loop of one's own may call anything labels: there they are tokens if they are as long as ``input_ids`` or longer,
    or as long as a decoder's column, and stay as they are if they are shorter. Without ``input_ids`` the longest
    matrices are the tokens.

    A batch whose attention was worked out for its length already stays as it is.
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
