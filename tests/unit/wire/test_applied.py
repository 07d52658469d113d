"""A script that ignores its plan is caught in every field; one that applies it, or ended early, is not."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from memtune.api.status import SENTENCE
from memtune.plans.plan import Plan
from memtune.wire.applied import OPENED_FIELDS, mismatch, shortened_accumulation
from memtune.wire.report import Applied

PLAN = Plan.parse("bf16-z2-full-mb4x8-exp")
FOLLOWED = Applied(
    micro_batch=4,
    micro_steps=8,
    samples_per_step=64,
    largest_tokens=512,
    backend="deepspeed",
    zero_stage=2,
    weight_dtype="bfloat16",
    gradient_dtype="bfloat16",
    compute_dtype="bfloat16",
    checkpointed_blocks=24,
    expandable_segments=True,
    optimizer="adamw",
    attention="sdpa",
    fused_loss=False,
)
IGNORED: dict[str, Any] = {
    "micro_batch": 2,
    "micro_steps": 4,
    "samples_per_step": 32,
    "backend": "ddp",
    "zero_stage": 3,
    "weight_dtype": "float32",
    "gradient_dtype": "float32",
    "compute_dtype": "float32",
    "checkpointed_blocks": 0,
    "expandable_segments": False,
    "optimizer": "sgd",
    "attention": "eager",
    "fused_loss": True,
}


def test_a_plan_that_is_followed_has_no_mismatch() -> None:
    assert mismatch(PLAN, FOLLOWED, world=2, is_probe=False) == ""
    assert mismatch(PLAN, Applied(), world=2, is_probe=False) == "", "nothing seen is nothing to hold against it"


@pytest.mark.parametrize("name", IGNORED)
def test_every_field_is_compared(name: str) -> None:
    ignored = replace(FOLLOWED, **{name: IGNORED[name]})
    written = name.split("_")[0] + "".join(part.title() for part in name.split("_")[1:])
    opened = OPENED_FIELDS if written in OPENED_FIELDS else ()
    sentence = mismatch(PLAN, ignored, world=2, is_probe=name == "expandable_segments", opened=opened)
    assert f"applied.{written} is {IGNORED[name]}, but plan {PLAN} asks for" in sentence


def test_no_field_is_forgotten() -> None:
    # The tokens of a row depend on the script's data, and evaluation is its own choice: no plan sets them.
    assert {each.name for each in fields(Applied)} == {*IGNORED, "largest_tokens", "sharding", "evaluation_batch"}


def test_a_script_that_switches_expandable_segments_on_by_itself_is_left_alone() -> None:
    plain = replace(PLAN, expandable_segments=False)
    assert mismatch(plain, FOLLOWED, world=2, is_probe=False) == ""
    off = mismatch(PLAN, replace(FOLLOWED, expandable_segments=False), world=2, is_probe=True, integration="sdk")
    assert off.endswith(": the script must set neither PYTORCH_ALLOC_CONF nor PYTORCH_CUDA_ALLOC_CONF by itself")
    assert mismatch(PLAN, replace(FOLLOWED, expandable_segments=False), world=2, is_probe=False) == "", "it may fit"


def test_choices_of_training_and_script_are_compared_only_where_the_job_opens_them() -> None:
    plan = Plan.parse("bf16-ddp-full-mb4x8-sgd-eager-fl")
    seen = Applied(optimizer="adamw", attention="sdpa", fused_loss=False)
    assert mismatch(plan, seen, world=2, is_probe=True, integration="sdk") == ""
    assert mismatch(plan, seen, world=2, is_probe=True, integration="sdk", opened=OPENED_FIELDS) == (
        f"applied.optimizer is adamw, but plan {plan} asks for sgd, applied.attention is sdpa, not eager, "
        "applied.fusedLoss is False, not True: give initialize no optimizer=, or leave tuning.space.optimizer out; "
        "the model has an attention of its own; leave tuning.space.attention out; compute the loss by engine(micro), "
        "or leave tuning.space.fusedLoss out"
    )
    followed = Applied(optimizer="sgd", attention="eager", fused_loss=True)
    assert mismatch(plan, followed, world=2, is_probe=True, opened=OPENED_FIELDS) == ""


def test_the_strategy_of_fsdp_is_compared_and_of_no_other_backend() -> None:
    plan, seen = Plan.parse("bf16-fsdpsgo-none-mb4x8"), Applied(backend="fsdp", zero_stage=3, sharding="fsdp")
    sentence = mismatch(plan, seen, world=2, is_probe=False)
    assert sentence.startswith(f"applied.sharding is fsdp, but plan {plan} asks for fsdpsgo: the script must wrap")
    assert mismatch(plan, replace(seen, sharding="fsdpsgo"), world=2, is_probe=False) == ""
    assert mismatch(PLAN, FOLLOWED, world=2, is_probe=False) == "", "ZeRO's stage says all"


def test_all_differences_are_named_at_once_with_the_remedies_of_the_integration() -> None:
    seen = replace(FOLLOWED, micro_batch=2, micro_steps=4, samples_per_step=16, compute_dtype="float32")
    assert mismatch(PLAN, seen, world=2, is_probe=False) == (
        f"applied.microBatch is 2, but plan {PLAN} asks for 4, applied.microSteps is 4, not 8, "
        "applied.computeDtype is float32, not bfloat16: the script must take it from $MEMTUNE_MICRO_BATCH, or use an "
        "integration that sets it; the script must take it from $MEMTUNE_ACCUMULATION, or use an integration that sets "
        "it; the script must take the precision from $MEMTUNE_PLAN, use an integration that sets it, or have its "
        "own as the only tuning.space.precision"
    )
    for integration, remedy in (
        ("accelerate", "accelerator.accumulate(model), or $MEMTUNE_ACCUMULATION of them a step, or set tuning.space"),
        ("hf-trainer", "leave the training loop to the Trainer"),
        ("sdk", "call engine.step() once"),
    ):
        found = mismatch(PLAN, seen, world=2, is_probe=False, integration=integration)
        assert remedy in found
        assert "an integration that sets it" not in found


@pytest.mark.parametrize("integration", ["hf-trainer", "accelerate", "lightning"])
def test_fewer_micro_batches_may_be_all_that_an_epoch_has(integration: str) -> None:
    plan, seen = Plan.parse("bf16-fsdpsgo-full-mb16x128"), Applied(micro_batch=16, micro_steps=100)
    found = mismatch(plan, seen, world=2, is_probe=False, integration=integration)
    assert "asks for 128: if the epoch is shorter than globalBatchSize, lower that; else " in found
    assert len(found) <= SENTENCE, "none of it is cut out of the status"
    for other in (replace(seen, micro_steps=256), replace(seen, micro_batch=8)):
        assert "epoch" not in mismatch(plan, other, world=2, is_probe=False, integration=integration)


def test_consequential_differences_are_left_out() -> None:
    seen = replace(FOLLOWED, backend="ddp", zero_stage=0)
    assert "zeroStage" not in mismatch(PLAN, seen, world=2, is_probe=False)


def test_a_probe_may_be_shortened_but_an_attempt_not() -> None:
    shortened = replace(FOLLOWED, micro_steps=2, samples_per_step=16)
    assert shortened_accumulation(PLAN) == 2
    assert shortened_accumulation(Plan.parse("bf16-z2-full-mb4x1")) == 1
    assert mismatch(PLAN, shortened, world=2, is_probe=True) == ""
    assert mismatch(PLAN, FOLLOWED, world=2, is_probe=True) == "", "an integration that cannot shorten runs it whole"
    assert "microSteps is 2" in mismatch(PLAN, shortened, world=2, is_probe=False)


def test_one_rank_needs_no_wrapper_for_data_parallelism() -> None:
    seen = Applied(backend="none", zero_stage=0)
    assert mismatch(Plan.parse("bf16-ddp-none-mb4x8"), seen, world=1, is_probe=False) == ""
    assert "applied.backend is none" in mismatch(Plan.parse("bf16-ddp-none-mb4x8"), seen, world=2, is_probe=False)
    assert "applied.backend is none" in mismatch(Plan.parse("bf16-z0-none-mb4x8"), seen, world=1, is_probe=False)


@pytest.mark.parametrize(
    ("plan", "weights", "gradients", "compute", "wrong"),
    [
        ("bf16-ddp-none-mb1x1", "float32", "float32", "bfloat16", ""),  # autocast
        ("bf16-ddp-none-mb1x1", "bfloat16", "bfloat16", "bfloat16", ""),  # cast by the script
        ("bf16-ddp-none-mb1x1", "float32", "float32", "float32", "computeDtype"),  # no autocast
        ("bf16-ddp-none-mb1x1", "float16", "float16", "bfloat16", "weightDtype"),
        ("bf16-z2-none-mb1x1-g32", "bfloat16", "float32", "bfloat16", ""),
        ("bf16-z2-none-mb1x1-g32", "bfloat16", "bfloat16", "bfloat16", "gradientDtype"),
        ("tf32-ddp-none-mb1x1", "float32", "float32", "float32", ""),
        ("fp8-fsdp-none-mb1x1", "float32", "float32", "float8", ""),
        ("fp8-fsdp-none-mb1x1", "float32", "float32", "bfloat16", "computeDtype"),
    ],
)
def test_differing_precision_is_reported(plan: str, weights: str, gradients: str, compute: str, wrong: str) -> None:
    seen = Applied(weight_dtype=weights, gradient_dtype=gradients, compute_dtype=compute)
    sentence = mismatch(Plan.parse(plan), seen, world=2, is_probe=False)
    assert (f"applied.{wrong} is" in sentence) if wrong else sentence == ""


def test_a_script_that_checkpoints_against_its_plan_is_caught() -> None:
    sentence = mismatch(Plan.parse("bf16-z2-none-mb4x8"), FOLLOWED, world=2, is_probe=False)
    assert "applied.checkpointedBlocks is 24" in sentence
    assert "switch the script's own checkpointing off" in sentence
    assert "memtune_runner.loss_in_parts" in sentence, "it may be the parts of a loss alone"


def test_the_remedy_for_missing_checkpointing_depends_on_the_integration() -> None:
    plan, seen = Plan.parse("bf16-z2-full-mb4x8"), Applied(checkpointed_blocks=0)
    assert "switch the script's own checkpointing on" in mismatch(plan, seen, world=2, is_probe=False)
    by_runner = mismatch(plan, seen, world=2, is_probe=False, integration="accelerate")
    assert "applied.checkpointedBlocks is 0" in by_runner
    assert "in the model that it is given" in by_runner
    assert "script" not in by_runner
