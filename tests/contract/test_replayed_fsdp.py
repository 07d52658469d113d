"""A replay knows when FSDP2 has the root's weights, wherever a loss is computed: counted bytes agree."""

from __future__ import annotations

import fake_ranks
import pytest
from truth import WORLD, counted, predicted, replayer
from truth_models import MODELS

from memtune.plan import Plan
from memtune.replay import Replayer

# One of each was up to 11% high where the loss is around the model.
PLANS = ("bf16-fsdp-none-mb1x1", "bf16-fsdp-full-mb8x2", "bf16-fsdpsgo-none-mb4x2")

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module", autouse=True)
def _four_ranks() -> None:
    fake_ranks.join(WORLD)


@pytest.fixture(scope="module", params=["llama", "llama-loss-around"])
def model(request: pytest.FixtureRequest) -> tuple[str, Replayer]:
    return request.param, replayer(MODELS[request.param], PLANS)


@pytest.mark.parametrize("short", PLANS)
def test_what_is_replayed_is_what_is_counted(short: str, model: tuple[str, Replayer]) -> None:
    name, replaying = model
    plan = Plan.parse(short)
    assert predicted(replaying, plan) == pytest.approx(counted(MODELS[name], plan), rel=0.001)
