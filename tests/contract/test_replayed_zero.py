"""A replay knows when DeepSpeed's bucket, its copy, whole gradients and states are there: counted bytes agree."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator

import fake_ranks
import pytest
from partly import partly
from truth import WORLD, counted, predicted, replayer
from truth_models import MODELS

from memtune.plan import Plan
from memtune.replay import Replayer

PLANS = (
    "bf16-z1-full-mb1x1-bk100000",
    "bf16-z1-full-mb1x1-bk1m",
    "bf16-z1-none-mb1x2-bk1m",
    # Stage 1 with wider gradients beside bf16 is another optimizer, without a bucket.
    "bf16-z1-full-mb1x1-g32-bk100000",
    "bf16-z1-full-mb1x1-lion-g32-bk1m",
    "bf16-z1-none-mb1x2-g32-bk1m",
    # Beside fp16 it widens each gradient as it comes, and the bucket, which is narrowed to be reduced.
    "fp16-z1-full-mb1x1-g32-bk100000",
    "fp16-z1-none-mb1x2-g32-bk1m",
    "bf16-z2-full-mb1x1-bk100000",
    "bf16-z2-full-mb1x1-bk1m",
    "bf16-z2-none-mb2x2-bk1m",
    # Wider gradients are added up in a partition that the step takes as it is.
    "bf16-z2-full-mb1x1-g32-bk1m",
    "bf16-z2-full-mb1x2-g32-bk100000",
    "bf16-z2-none-mb2x2-g32-bk1m",
    "bf16-z3-full-mb1x1-bk1m",
    # What is left of a bucket that was reduced is widened beside it.
    "bf16-z3-full-mb1x2-g32-bk1m",
)
OFFLOADED = ("bf16-z1-full-mb1x1-g32-bk1m-oopt", "bf16-z2-full-mb1x1-g32-bk1m-oopt", "bf16-z2-full-mb1x1-bk100000-oopt")
UNREACHED = ("fp32-z0-full-mb1x1", "bf16-z1-full-mb1x2-bk100000", "bf16-z2-full-mb1x2-g32-bk100000")
MODEL = MODELS["mistral"]

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore"),  # DeepSpeed and torch warn about each other's deprecations
]


@pytest.fixture(scope="module")
def replaying() -> Iterator[Replayer]:
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fake_ranks.join(WORLD)
    yield replayer(MODEL, (*PLANS, *OFFLOADED))
    logging.disable(disabled)


@pytest.mark.parametrize("short", PLANS)
def test_what_is_replayed_is_what_is_counted(short: str, replaying: Replayer) -> None:
    plan = Plan.parse(short)
    assert predicted(replaying, plan) == pytest.approx(counted(MODEL, plan), rel=0.002)


@pytest.mark.parametrize("short", OFFLOADED)
def test_what_is_replayed_is_what_is_counted_beside_the_host(short: str, replaying: Replayer) -> None:
    plan, learning = Plan.parse(short), [each.numel() for each in MODEL().model.parameters()]
    # Nothing tells host memory from the GPU's here: masters, gradients and two moments, and two buffers of 16 bits.
    host_bytes = (4 * 4 + 2) * sum(learning) // WORLD + 2 * max(learning)
    assert predicted(replaying, plan) == pytest.approx(counted(MODEL, plan) - host_bytes, rel=0.002)


# Up to 14% low: DeepSpeed makes zeros in the place of gradients that are not there, and takes norms in fp64.
@pytest.mark.parametrize(
    "short", ["fp32-z0-full-mb1x1", "bf16-z1-full-mb1x2-bk100000", "bf16-z2-full-mb1x2-g32-bk100000"]
)
@pytest.mark.usefixtures("replaying")
def test_weights_without_a_gradient_get_zeros(short: str) -> None:
    plan = Plan.parse(short)
    assert predicted(replayer(partly, [short]), plan) == pytest.approx(counted(partly, plan), rel=0.005)
