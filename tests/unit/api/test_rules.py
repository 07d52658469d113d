"""The rules over several fields, in Python; contract/api/test_crd_rules.py compares them with those of the CRD."""

from __future__ import annotations

from typing import Any

import pytest
from rule_breaking_specs import BROKEN, GOOD, fixed
from valid_spec import job, spec

from memtune.api import Problem, SpecError, load_job
from memtune.api.rules import RULES


def problem(made: dict[str, Any]) -> Problem:
    with pytest.raises(SpecError) as caught:
        load_job(job(made))
    assert len(caught.value.problems) == 1, str(caught.value)
    return caught.value.problems[0]


@pytest.mark.parametrize(("words", "made", "path"), BROKEN, ids=[f"{path}-{words}" for words, _, path in BROKEN])
def test_a_broken_rule_is_refused_where_it_is_broken(words: str, made: dict[str, Any], path: str) -> None:
    assert problem(made).path == path
    assert path in {rule.path for rule in RULES if rule.message.startswith(words)}


def test_a_good_spec_is_read() -> None:
    for made in GOOD:
        load_job(job(made))


def test_every_rule_is_broken_by_an_example() -> None:
    unbroken = [r.message for r in RULES if not any(r.message.startswith(words) for words, _, _ in BROKEN)]
    assert unbroken == []


@pytest.mark.parametrize(
    ("plan", "advice"),
    [
        ("bf16-z9-sel-mb12x8", "'z9' is not one of ddp, z0,"),
        ("bf16-ddp-sel-mb12x8-oopt", "DDP cannot offload optimizer"),
        ("bf16-z2-sel-mb12x8-lion", "has optimizer lion, and training.optimizer is adamw; make them the same"),
        ("bf16-z2-sel-mb12x8-g32", "has gradientDtype fp32, and training.gradientDtype is model"),
        ("bf16-z2-sel-mb12x8-eager", "has attention eager, and training.attention is flash"),
        ("fp32-z2-sel-mb12x8", "fp32-z2-sel-mb12x8 cannot run: flash attention has no fp32 kernel; use sdpa"),
        ("bf16-z0-sel-mb12x8-oopt", "cannot run: offload optimizer needs ZeRO 1 or more, or FSDP"),
        ("bf16-z2-sel-mb4x8", "makes 32 sequences a step on 1 GPU, and training.globalBatchSize is 96; micro-batch x"),
        ("bf16-z2-sel", "it has fewer than four parts; a plan is written like bf16-z2-sel-mb4x8"),
        ("bf16-z2-sel-mb0x8", "micro_batch is 0; it must be at least 1"),
        ("bf16-z2-sel-mb12x8-mb", "'mb' is no option; options are"),
        ("bf16-mbz-sel-mb12x8", "'mbz' is not one of ddp, z0,"),
        ("a-mb5-c-mb12x8", "'a' is not one of fp8, bf16,"),
        ("bf16-z2-sel-mb012x8", "'bf16-z2-sel-mb012x8' is written bf16-z2-sel-mb12x8"),
        ("bf16-z2-sel-mb12x8-exp-exp", "'exp' sets expandable_segments a second time"),
    ],
)
def test_a_fixed_plan_that_cannot_train_the_job_says_why(plan: str, advice: str) -> None:
    found = problem(fixed(plan))
    assert found.path == "spec.tuning.plan"
    assert advice in found.advice


def test_several_broken_rules_come_at_once() -> None:
    made = spec(training={"globalBatchSize": 97}, integration="sdk", resources={"gpusPerNode": 8})
    with pytest.raises(SpecError) as caught:
        load_job(job(made))
    assert {p.path for p in caught.value.problems} == {"spec.training.globalBatchSize", "spec.integration"}


@pytest.mark.parametrize(("batch", "use"), [(100, "96 or 104"), (7, "8")])
def test_a_batch_that_cannot_be_divided_suggests_the_nearest_that_can(batch: int, use: str) -> None:
    found = problem(spec(training={"globalBatchSize": batch}, resources={"gpusPerNode": 8}))
    assert str(found) == f"spec.training.globalBatchSize: {batch} cannot be divided among 8 GPUs; use {use}"
