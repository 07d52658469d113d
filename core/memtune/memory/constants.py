"""The few global numbers that no formula gives: measured overheads and the trust in each component.

Every value holds for all models and plans; none belongs to a model, a source or a row. `bench/accuracy.py` refits the
fields of `FITTED` on published peaks (and, source by source, on all other sources). The rest is read from the code or
documents named beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from memtune.units import MIB

FITTED = (
    "activation_factor",
    "backward_factor",
)

# The half-width of the 97.5% interval of each component, relative to its expected bytes.
DEFAULT_TRUST: Mapping[str, float] = {
    "weights": 0.01,
    "adapter": 0.10,
    "master weights": 0.01,
    "gradients": 0.04,
    "optimizer states": 0.03,
    "autocast copies": 0.20,
    "gathered units": 0.20,
    "buckets": 0.20,
    "activations": 0.12,
    "layer in backward": 0.20,
    "logits": 0.15,
    "step transients": 0.15,
    "evaluation": 0.20,
    "workspace": 0.50,
    "allocator": 1.0,
    "context": 0.40,
    "nccl": 0.60,
}


@dataclass(frozen=True)
class Constants:
    """Global coefficients of the memory model."""

    # What layers keep over the tensors the formulas name. transformers' own code keeps nothing more (its models traced
    # come out at 1.00); other code does, such as slices that keep a fused projection alive.
    activation_factor: float = 1.08
    # Gradient temporaries of one layer's backward, in units of its widest feed-forward tensor.
    backward_factor: float = 2.0
    # What an eager loss spends per logit beside the logit: three fp32 tensors, as emulated runs that peak there show.
    eager_loss_bytes: float = 12.0
    # 512-byte rounding of a training step's allocations: c10/cuda/CUDACachingAllocator.cpp, kMinBlockSize.
    rounding: float = 0.002
    # Of one segment in each pool of the allocator, the share that is unused: the median of nine small models replayed
    # under seven plans and five micro-batches; of one in ten it was a little more than the whole.
    unused_share: float = 0.75
    # Where the chip is not known: between the two sizes that recipe.workspace_bytes tells of.
    workspace_bytes: float = 40.0 * MIB
    # 287 MB with lazy loading, 667 MB without (pytorch#86509); 500 MB is between.
    context_bytes: float = 500.0 * MIB
    # One communicator takes 0.5 to 1.6 GB (nccl#964, #864), growing with the ranks it reaches.
    nccl_bytes: float = 700.0 * MIB
    nccl_bytes_per_doubling: float = 100.0 * MIB
    # What the formulas leave out altogether: the part that all plans of a workload share, which calibration learns,
    # relative to the bytes that are estimated, and the part of each plan alone, relative to all of them.
    unmodelled: float = 0.20
    noise: float = 0.015
    # How much an input that nobody states widens the interval.
    unknown_widening: float = 0.10
    trust: Mapping[str, float] = field(default_factory=lambda: DEFAULT_TRUST)


DEFAULT_CONSTANTS = Constants()
