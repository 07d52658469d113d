"""A single rank gathers nothing: FSDP copies its units before use, ZeRO uses its partition in place."""

from __future__ import annotations

import logging
import warnings

import fake_ranks
import pytest
import truth
from truth import counted, predicted, replayer
from truth_models import MODELS

from memtune.plans.plan import Plan

MODEL = MODELS["mistral"]

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore"),  # DeepSpeed and torch warn about each other's deprecations
]


@pytest.fixture(scope="module", autouse=True)
def _alone() -> None:
    fake_ranks.join(1)


@pytest.mark.parametrize(
    "short",
    [
        "fp32-fsdp-none-mb4x1",
        "bf16-fsdpsgo-none-mb1x2",
        "bf16-z1-full-mb1x1-bk100000",
        "bf16-z3-none-mb1x1-bk100000",
        "fp32-z3-full-mb1x1-bk100000",
    ],
)
def test_the_replay_matches_the_counted_tensors(short: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(truth, "WORLD", 1)
    plan = Plan.parse(short)
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert predicted(replayer(MODEL, [short]), plan) == pytest.approx(counted(MODEL, plan), rel=0.002)
    logging.disable(disabled)
