"""Plans that the engine cannot run are refused with an alternative."""

from __future__ import annotations

import pytest

from memtune.plans.plan import Plan
from memtune.wire.report import Device
from memtune_runner.rank.plan_refusals import PlanError, refuse


@pytest.mark.parametrize(
    ("short_form", "device", "words"),
    [
        ("bf16-z2-none-mb1x1-oopt", Device.VIRTUAL, "offload optimizer cannot be measured on a virtual GPU"),
        ("bf16-fsdp-none-mb1x1-oparam", Device.VIRTUAL, "use device cuda, or a plan without offload"),
        ("bf16-ddp-none-mb1x1-oact", Device.VIRTUAL, "offload activations"),
        ("fp8-z1-none-mb1x1", Device.VIRTUAL, "a virtual GPU has no fp8; use bf16"),
        ("bf16-z1-none-mb1x1-muon", Device.CUDA, "muon works on whole matrices"),
        ("bf16-z3-none-mb1x1-muon", Device.CUDA, "use z0, ddp or fsdp"),
        ("bf16-z3-none-mb1x1-adafactor", Device.CUDA, "ZeRO hands it flat pieces; use z0 or ddp"),
        ("bf16-fsdp-none-mb1x1-adafactor", Device.VIRTUAL, "FSDP hands it shards; use z0 or ddp"),
        ("bf16-fsdphyb-none-mb1x1-adafactor", Device.CUDA, "FSDP hands it shards"),
        ("bf16-z0-none-mb1x1-g32", Device.CUDA, "no fp32 gradients of bf16 weights at stage 0"),
    ],
)
def test_a_plan_that_cannot_be_carried_out_is_refused(short_form: str, device: Device, words: str) -> None:
    with pytest.raises(PlanError, match=words) as refused:
        refuse(Plan.parse(short_form), device)
    assert short_form in str(refused.value)


@pytest.mark.parametrize(
    ("short_form", "device"),
    [
        ("bf16-z2-none-mb1x1-oopt", Device.CUDA),
        ("bf16-ddp-none-mb1x1-oact", Device.CUDA),
        ("bf16-z0-none-mb1x1-muon", Device.CUDA),
        ("bf16-fsdp-none-mb1x1-muon", Device.VIRTUAL),
        ("bf16-z0-none-mb1x1-adafactor", Device.VIRTUAL),
        ("fp32-z0-none-mb1x1-g32", Device.VIRTUAL),
        ("bf16-z1-none-mb1x1-g32", Device.VIRTUAL),
    ],
)
def test_plans_that_can_be_carried_out_are_accepted(short_form: str, device: Device) -> None:
    refuse(Plan.parse(short_form), device)
