"""The resume table, entry by entry. Contract tests check that the libraries behave as it says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memtune.plans.plan import Plan
from memtune.plans.resume import Format, Way, resumable, resumption

TABLE = [
    (Format.DEEPSPEED, "bf16-z1-none-mb2x2", "bf16-z1-full-mb1x4", True, Way.DIRECT),
    (Format.DEEPSPEED, "bf16-z1-none-mb2x2", "bf16-z2-none-mb2x2", True, Way.DIRECT),
    (Format.DEEPSPEED, "bf16-z2-none-mb2x2", "bf16-z2-none-mb2x2-oopt", True, Way.DIRECT),
    (Format.DEEPSPEED, "bf16-z3-none-mb2x2", "bf16-z3-none-mb2x2-oparam", True, Way.DIRECT),
    (Format.DEEPSPEED, "bf16-z0-none-mb2x2", "bf16-z0-none-mb2x2", False, Way.DIRECT),
    (Format.DEEPSPEED, "bf16-z2-none-mb2x2", "bf16-z3-none-mb2x2", True, Way.CONVERT),
    (Format.DEEPSPEED, "bf16-z3-none-mb2x2", "bf16-z3-none-mb2x2", False, Way.CONVERT),
    (Format.DEEPSPEED, "bf16-z1-none-mb2x2-g32", "bf16-z1-none-mb2x2", True, Way.CONVERT),
    (Format.DEEPSPEED, "fp16-z1-none-mb2x2-g32", "fp16-z1-none-mb2x2", True, Way.DIRECT),
    (Format.DEEPSPEED, "bf16-z3-none-mb2x2", "bf16-z2-none-mb2x2", True, Way.IMPOSSIBLE),
    (Format.DEEPSPEED, "bf16-z0-none-mb2x2", "bf16-z1-none-mb2x2", True, Way.IMPOSSIBLE),
    (Format.DEEPSPEED, "bf16-z2-none-mb2x2", "bf16-fsdp-none-mb2x2", True, Way.IMPOSSIBLE),
    (Format.DEEPSPEED, "bf16-z2-none-mb2x2-lion", "bf16-z3-none-mb2x2-lion", True, Way.IMPOSSIBLE),
    (Format.DEEPSPEED, "bf16-z2-none-mb2x2", "bf16-z2-none-mb2x2-adamw8bit", True, Way.IMPOSSIBLE),
    (Format.DEEPSPEED, "fp32-z2-none-mb2x2", "bf16-z2-none-mb2x2", True, Way.IMPOSSIBLE),
    (Format.DEEPSPEED, "tf32-z2-none-mb2x2", "fp32-z2-none-mb2x2", True, Way.DIRECT),
    (Format.DEEPSPEED, "bf16-z3-none-mb2x2-onvme", "bf16-z3-none-mb1x4-onvme", True, Way.DIRECT),
    (Format.DEEPSPEED, "bf16-z3-none-mb2x2", "bf16-z3-none-mb2x2-onvme", True, Way.IMPOSSIBLE),
    (Format.UNIVERSAL, "bf16-z2-none-mb2x2", "bf16-z3-none-mb2x2", False, Way.DIRECT),
    (Format.UNIVERSAL, "bf16-z3-none-mb2x2", "bf16-z1-none-mb2x2", True, Way.IMPOSSIBLE),
    (Format.DCP, "bf16-ddp-none-mb2x2", "bf16-fsdpsgo-none-mb2x2", True, Way.DIRECT),
    (Format.DCP, "bf16-fsdp-none-mb2x2", "bf16-fsdp-none-mb2x2-oparam", False, Way.DIRECT),
    (Format.DCP, "bf16-fsdp-none-mb2x2", "bf16-z3-none-mb2x2", True, Way.IMPOSSIBLE),
    (Format.DCP, "fp32-fsdp-none-mb2x2", "bf16-fsdp-none-mb2x2", True, Way.DIRECT),
    (Format.DCP, "bf16-fsdp-none-mb2x2-adamw8bit", "bf16-fsdpsgo-none-mb2x2-adamw8bit", False, Way.DIRECT),
    (Format.DCP, "bf16-ddp-none-mb2x2-adamw8bit", "bf16-fsdp-none-mb2x2-adamw8bit", True, Way.IMPOSSIBLE),
    (Format.DEEPSPEED, "bf16-z2-none-mb2x2-adamw8bit", "bf16-z2-none-mb2x2-adamw8bit", False, Way.IMPOSSIBLE),
    (Format.SCRIPT, "fp32-ddp-none-mb2x2", "bf16-ddp-none-mb2x2", True, Way.IMPOSSIBLE),
    (Format.HF_TRAINER, "bf16-z2-none-mb2x2", "bf16-z3-none-mb2x2", True, Way.CONVERT),
    (Format.HF_TRAINER, "bf16-ddp-none-mb2x2", "bf16-ddp-none-mb1x4", False, Way.DIRECT),
    (Format.HF_TRAINER, "bf16-ddp-none-mb2x2", "bf16-fsdp-none-mb2x2", True, Way.IMPOSSIBLE),
    (Format.ACCELERATE, "bf16-fsdp-none-mb2x2", "bf16-fsdp-full-mb1x4", True, Way.DIRECT),
    (Format.SCRIPT, "bf16-ddp-none-mb2x2", "bf16-ddp-full-mb1x4", False, Way.DIRECT),
    (Format.SCRIPT, "bf16-z2-none-mb2x2", "bf16-z2-full-mb1x4", True, Way.DIRECT),
    (Format.SCRIPT, "bf16-z2-none-mb2x2", "bf16-z2-full-mb1x4", False, Way.IMPOSSIBLE),
]
SHORT_FORMS = sorted({short_form for _, saved, wanted, *_ in TABLE for short_form in (saved, wanted)})


@pytest.mark.parametrize(("checkpoint_format", "saved", "wanted", "same_world", "way"), TABLE)
def test_entry(checkpoint_format: Format, saved: str, wanted: str, same_world: bool, way: Way) -> None:
    entry = resumption(checkpoint_format, Plan.parse(saved), Plan.parse(wanted), same_world)
    assert entry.way is way, entry.reason
    assert entry.reason


@pytest.mark.parametrize(
    ("wanted", "same_world", "words"),
    [
        ("fp32-fsdp-none-mb2x2", False, "which it saved on another number of GPUs"),
        ("fp32-ddp-none-mb2x2", True, "which it saved under another sharding"),
        ("fp32-fsdp-none-mb2x2-oparam", True, "which it saved with another offload"),
        ("fp32-ddp-none-mb2x2", False, "which it saved under another sharding and on another number of GPUs"),
    ],
)
def test_the_obstacle_to_resuming_a_scripts_checkpoint_is_named(wanted: str, same_world: bool, words: str) -> None:
    saved = Plan.parse("fp32-fsdp-none-mb2x2")
    assert resumption(Format.SCRIPT, saved, Plan.parse(wanted), same_world).reason.endswith(words)


@given(st.sampled_from(Format), st.sampled_from(SHORT_FORMS))
def test_every_format_resumes_under_its_own_plan_and_world(checkpoint_format: Format, short_form: str) -> None:
    plan = Plan.parse(short_form)
    if checkpoint_format is Format.UNIVERSAL and plan.sharding.value not in ("z1", "z2", "z3"):
        return  # nothing else is converted
    if checkpoint_format is Format.UNIVERSAL and (plan.optimizer != "adamw" or plan.offload == "nvme"):
        return
    if checkpoint_format is Format.DEEPSPEED and plan.sharding.backend != "deepspeed":
        return
    if checkpoint_format is Format.DCP and plan.sharding.backend == "deepspeed":
        return
    assert resumption(checkpoint_format, plan, plan, same_world=True).way is Way.DIRECT


def test_the_plan_that_fits_changes_as_little_as_it_can() -> None:
    saved, wanted = Plan.parse("bf16-z3-none-mb2x2"), Plan.parse("bf16-z2-full-mb1x4")
    assert resumable(Format.DEEPSPEED, saved, wanted, same_world=True) == Plan.parse("bf16-z3-full-mb1x4")
    assert resumable(Format.DEEPSPEED, saved, saved, same_world=True) == saved


def test_there_may_be_no_plan_that_fits() -> None:
    saved = Plan.parse("bf16-z2-none-mb2x2-lion")
    assert resumable(Format.DEEPSPEED, saved, saved, same_world=False) is None
