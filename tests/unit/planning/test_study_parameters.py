"""A plan as the parameters of a study, and back."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from memtune.api import load_job
from memtune.api.status import Status
from memtune.controller.job_knowledge import knowledge_of
from memtune.planning.parameters import StudyParameters
from memtune.plans.plan import Plan

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.yaml"))


def parameters(*plans: str) -> StudyParameters:
    return StudyParameters(tuple(Plan.parse(plan) for plan in plans))


def jobs(path: Path) -> list[dict[str, object]]:
    found = yaml.safe_load_all(path.read_text())
    return [each for each in found if each and each.get("kind") == "MemoryTunedJob"]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_plan_of_an_example_is_its_parameters_and_back(path: Path) -> None:
    for manifest in jobs(path):
        job = load_job(manifest)
        if job.spec.model.factory:
            continue  # its plans are known after a trace
        plans = knowledge_of(job, Status(), None).plans
        study = StudyParameters(plans)
        told = [study.values_of(plan) for plan in plans]
        assert [study.plan_of(values) for values in told] == list(plans)
        assert len({tuple(values.items()) for values in told}) == len(plans)
        assert all(value in study.choices[name] for values in told for name, value in values.items())


def test_a_knob_on_which_all_plans_agree_is_no_parameter() -> None:
    assert parameters("bf16-z1-none-mb1x8", "bf16-z2-none-mb2x4").choices == {
        "sharding": ("z1", "z2"),
        "micro_batch": (1, 2),
    }
    assert parameters("bf16-z1-none-mb1x8").choices == {}
    assert parameters("bf16-z1-none-mb1x8").plan_of({}) == Plan.parse("bf16-z1-none-mb1x8")
    assert StudyParameters(()).plan_of({}) is None


def test_every_knob_that_plans_differ_in_is_a_parameter() -> None:
    plans = ("bf16-z3-none-mb1x8", "fp16-fsdp-every4-mb2x4-oparam-adamw8bit-foreach-g32-sdpa-fl-bk5m-exp-split64")
    assert list(parameters(*plans).choices) == [
        "precision",
        "sharding",
        "checkpointing",
        "offload",
        "optimizer",
        "fused_optimizer",
        "gradient_dtype",
        "attention",
        "fused_loss",
        "bucket_elements",
        "expandable_segments",
        "max_split_size_mib",
        "micro_batch",
    ]


def test_a_parameter_is_conditional_where_the_choices_before_it_leave_it_one_value() -> None:
    study = parameters("bf16-ddp-none-mb1x8", "bf16-z3-none-mb1x8", "bf16-z3-none-mb1x8-oopt")
    assert study.values_of(Plan.parse("bf16-ddp-none-mb1x8")) == {"sharding": "ddp"}
    assert study.values_of(Plan.parse("bf16-z3-none-mb1x8-oopt")) == {"sharding": "z3", "offload": "optimizer"}


def test_parameters_of_no_plan_are_refused() -> None:
    study = parameters("bf16-z1-none-mb1x8", "bf16-z1-full-mb8x1", "bf16-z2-none-mb1x8", "bf16-z2-none-mb8x1")
    assert study.plan_of({"sharding": "z1", "checkpointing": "full", "micro_batch": 8}) == study.plans[1]
    assert study.plan_of({"sharding": "z3"}) is None
    assert study.plan_of({"checkpointing": "full"}) is None
    with pytest.raises(ValueError, match="bf16-z3-none-mb1x8 is no plan of this study"):
        study.values_of(Plan.parse("bf16-z3-none-mb1x8"))
