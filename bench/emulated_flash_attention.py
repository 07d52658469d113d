"""flash-attn's functions on torch's own flash kernels, for transformers with `flash_attention_2`.

PyPI has flash-attn only as source, which needs nvcc to build. torch's kernels are the same and keep the same tensors.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import torch

_VERSION = "2.6.3"


def flash_attn_func(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dropout_p: float = 0.0, causal: bool = False, **_: Any
) -> torch.Tensor:
    """Attention of rows x tokens x heads x size; keys and values may have fewer heads."""
    length, others = query.shape[1], key.shape[1]
    attend = torch.ops.aten._flash_attention_forward
    mixed: torch.Tensor = attend(query, key, value, None, None, length, others, dropout_p, causal, False)[0]
    return mixed


def install() -> None:
    """Make transformers find the package; call this before importing anything of transformers but its utils."""
    from transformers import utils

    package, padding = ModuleType("flash_attn"), ModuleType("flash_attn.bert_padding")
    for name in ("index_first_axis", "pad_input", "unpad_input"):
        setattr(padding, name, _refused)
    package.__dict__.update(
        flash_attn_func=flash_attn_func, flash_attn_varlen_func=_refused, bert_padding=padding, __version__=_VERSION
    )
    sys.modules.update({"flash_attn": package, "flash_attn.bert_padding": padding})
    for module in (utils, utils.import_utils):
        module.is_flash_attn_2_available = lambda: True  # type: ignore[attr-defined]
        module.is_flash_attn_greater_or_equal = lambda _: True  # type: ignore[attr-defined]
        module.is_flash_attn_greater_or_equal_2_10 = lambda: True  # type: ignore[attr-defined]


def _refused(*_: Any, **__: Any) -> None:
    raise RuntimeError("the rows of these runs are full, so nothing should be padded")
