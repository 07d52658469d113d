"""Transformations by their names, of which timm derives some; none is used."""

from __future__ import annotations

from torch import nn


def __getattr__(name: str) -> type:
    if name.startswith("_") or name.islower():
        raise AttributeError(name)
    return type(name, (nn.Module,), {})
