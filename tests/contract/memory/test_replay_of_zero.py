"""A replay knows when DeepSpeed's bucket, its copy, whole gradients and states exist: counted bytes agree."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import fake_ranks
import pytest
import torch
from small_models import partly
from truth import WORLD, counted, predicted, replayer
from truth_models import MODELS

from memtune.memory.replay import Replayer
from memtune.plans.plan import Plan
from memtune_runner.tracing.factory import Subject

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
MODEL = MODELS["mistral"]

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore"),  # DeepSpeed and torch warn about each other's deprecations
]


@pytest.fixture(scope="module", autouse=True)
def _four_ranks() -> Iterator[None]:
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fake_ranks.join(WORLD)
    yield
    logging.disable(disabled)


@pytest.fixture(scope="module")
def replaying() -> Replayer:
    return replayer(MODEL, (*PLANS, *OFFLOADED))


def wide(length: int = 128, **facts: object) -> Subject:
    """Return blocks with matrices that stage 3 shards."""
    from transformers import AutoConfig, AutoModelForCausalLM

    kind: Any = AutoModelForCausalLM
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "vocab_size": 512}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "use_cache": False}
    config = AutoConfig.for_model("llama", **sizes | heads | facts)
    return Subject(
        kind.from_config(config),
        lambda rows: {name: torch.ones(rows, length, dtype=torch.long) for name in ("input_ids", "labels")},
        lambda model, batch: model(**batch).loss,
    )


def partly_frozen() -> Subject:
    subject = wide()
    for number in (1, 2):
        subject.model.get_submodule(f"model.layers.{number}").requires_grad_(False)
    return subject


def adapted() -> Subject:
    from peft import LoraConfig, get_peft_model

    subject = wide()
    adapter = LoraConfig(r=8, target_modules=["q_proj", "v_proj"])
    return subject._replace(model=get_peft_model(subject.model, adapter))


def wordy() -> Subject:
    """Return an embedding and a separate head that are large compared with the blocks."""
    return wide(64, vocab_size=8192, hidden_size=128)


# DeepSpeed's products keep the inputs of frozen weights; every module gathers for those to come; and of an embedding
# nothing is there while the loss is computed. The first two were up to 14% low, the third was 11% high.
STAGE_3 = (
    (partly_frozen, "bf16-z3-none-mb2x1-bk1m"),
    (adapted, "bf16-z3-none-mb2x1-bk1m"),
    (adapted, "bf16-z3-full-mb2x1-bk1m"),
    (wordy, "bf16-z3-none-mb1x1-bk100000"),
    (wordy, "bf16-z3-full-mb1x2-bk1m"),
)
# 2% low, as if one matrix were gathered less, and 4% high; the causes are not known.
STAGE_3_NEARLY = ((partly_frozen, "bf16-z3-full-mb2x1-bk100000"), (adapted, "bf16-z3-sel-mb2x2-bk1m"))


@pytest.mark.parametrize("short", PLANS)
def test_the_replay_matches_the_counted_tensors(short: str, replaying: Replayer) -> None:
    plan = Plan.parse(short)
    assert predicted(replaying, plan) == pytest.approx(counted(MODEL, plan), rel=0.002)


@pytest.mark.parametrize("short", OFFLOADED)
def test_the_replay_with_offload_matches_the_counted_tensors(short: str, replaying: Replayer) -> None:
    plan, learning = Plan.parse(short), [each.numel() for each in MODEL().model.parameters()]
    # Nothing tells host memory from the GPU's here: masters, gradients and two moments, and two buffers of 16 bits.
    host_bytes = (4 * 4 + 2) * sum(learning) // WORLD + 2 * max(learning)
    assert predicted(replaying, plan) == pytest.approx(counted(MODEL, plan) - host_bytes, rel=0.002)


# Up to 14% low: DeepSpeed makes zeros in the place of gradients that are not there, and takes norms in fp64.
@pytest.mark.parametrize(
    "short", ["fp32-z0-full-mb1x1", "bf16-z1-full-mb1x2-bk100000", "bf16-z2-full-mb1x2-g32-bk100000"]
)
def test_weights_without_a_gradient_get_zeros(short: str) -> None:
    plan = Plan.parse(short)
    assert predicted(replayer(partly, [short]), plan) == pytest.approx(counted(partly, plan), rel=0.005)


@pytest.mark.parametrize(("subject", "short"), STAGE_3, ids=lambda each: getattr(each, "__name__", each))
def test_stage_3_is_replayed_weight_by_weight(subject: Callable[[], Subject], short: str) -> None:
    plan = Plan.parse(short)
    assert predicted(replayer(subject, [short]), plan) == pytest.approx(counted(subject, plan), rel=0.002)


@pytest.mark.parametrize(("subject", "short"), STAGE_3_NEARLY, ids=lambda each: getattr(each, "__name__", each))
def test_stage_3_is_replayed_within_a_twentieth(subject: Callable[[], Subject], short: str) -> None:
    plan = Plan.parse(short)
    assert predicted(replayer(subject, [short]), plan) == pytest.approx(counted(subject, plan), rel=0.05)
