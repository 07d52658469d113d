"""Global constants of the memory model: measured overheads, and the default trust in each component.

Every value holds for all models and plans; none is specific to a model, a source or a row. `bench/accuracy.py` refits
the fields of `FITTED` on published peaks (and, source by source, on all other sources). The rest comes from the code or
documents named next to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from memtune.units import MIB

FITTED = (
    "activation_factor",
    "backward_factor",
)

# The half-width of each component's 95% interval, relative to its expected bytes.
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

# How much more than expected a whole job may take before its first measurement, beside the widths of its components:
# the relative half-width of the 95% bound, upwards only. Written by `python bench/job_width.py --write`, never by hand.
JOB_WIDTH = 0.259


@dataclass(frozen=True)
class Constants:
    """Global coefficients of the memory model."""

    # Memory that layers keep beyond the tensors in the formulas. transformers' own code keeps nothing more (its models
    # traced give 1.00); other code does, such as slices that keep a fused projection alive.
    activation_factor: float = 1.08
    # Gradient temporaries of one layer's backward, in units of its widest feed-forward tensor.
    backward_factor: float = 2.0
    # Bytes that an eager loss uses per logit beside the logit: three fp32 tensors, as emulated runs that peak there
    # show.
    eager_loss_bytes: float = 12.0
    # 512-byte rounding of a training step's allocations: c10/cuda/CUDACachingAllocator.cpp, kMinBlockSize.
    rounding: float = 0.002
    # The unused share of one segment in each pool of the allocator: the median of nine small models replayed under
    # seven plans and five micro-batches; in one of ten it was slightly more than the whole.
    unused_share: float = 0.75
    # If the chip is unknown: between the two sizes in recipe.workspace_bytes.
    workspace_bytes: float = 40.0 * MIB
    # Errors of the formulas: the part that all plans of a workload share, which calibration learns, relative to the
    # estimated bytes, and the part specific to each plan, relative to all bytes.
    unmodelled: float = 0.20
    # The same where transformers' own code runs: twice the bound of what emulated runs of its models were missed by.
    unmodelled_in_transformers: float = 0.15
    noise: float = 0.015
    # How much an unspecified input widens the interval.
    unknown_widening: float = 0.10
    trust: Mapping[str, float] = field(default_factory=lambda: DEFAULT_TRUST)
    job_width: float = JOB_WIDTH


DEFAULT_CONSTANTS = Constants()
