"""The message for an invalid job: the field, what was given, what was meant."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from job_with_every_field import WHOLE, problems, put

from memtune.api import SpecError, load_job


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("spec.training.sequenceLenght", "sequenceLength"),
        ("spec.training.global_batch_size", "globalBatchSize"),
        ("spec.resources.gpuPerNode", "gpusPerNode"),
        ("spec.tuning.space.zeroStage", "zeroStages"),
        ("spec.runer", "runner"),
    ],
)
def test_a_misspelt_field_suggests_the_right_one(path: str, meant: str) -> None:
    assert f"did you mean {meant}?" in problems(put(WHOLE, path, 1))[path]


def test_a_misspelt_choice_suggests_the_right_one() -> None:
    advice = problems(put(WHOLE, "spec.training.optimizer", "adamw8bit"))["spec.training.optimizer"]
    assert advice == (
        "adamw8bit is not allowed; did you mean adamw-8bit? use adamw, muon, lion, sgd, adafactor or adamw-8bit"
    )


def test_contradicting_objectives_are_refused_in_one_sentence() -> None:
    told = problems(put(WHOLE, "spec.tuning.objectives", ["throughput", "cost"]))
    assert told == {
        "spec.tuning.objectives": "on one GPU product the fastest plan has the cheapest tokens; give throughput or cost"
    }


def test_an_unknown_sampler_lists_the_known_ones() -> None:
    advice = problems(put(WHOLE, "spec.tuning.sampler", "tpe"))["spec.tuning.sampler"]
    assert advice == "tpe is not allowed; did you mean TPE? use MemTune, TPE, GP or Random"


def test_a_gpu_named_by_its_driver_suggests_the_label() -> None:
    path = "spec.resources.gpuProduct"
    advice = problems(put(WHOLE, path, "NVIDIA A100-SXM4-80GB"))[path]
    assert advice.startswith("NVIDIA A100-SXM4-80GB is not a label value; did you mean NVIDIA-A100-SXM4-80GB? use ")
    assert "did you mean" not in problems(put(WHOLE, path, "A100 (80 GB)"))[path]


@pytest.mark.parametrize(
    ("path", "value", "advice"),
    [
        (
            "spec.resources.gpuMemory",
            80,
            "80 is a number; it must be a quantity of memory; write it with its unit, like",
        ),
        ("spec.tuning.headroom", 0.1, "0.1 is a number; it must be a percentage from 0% to 50%; write it like 6%"),
        ("spec.model.factory", 7, "7 is a number; it must be a Python callable; write it as module:function"),
        ("metadata.name", 7, "7 is a number; it must be"),
        ("spec.model.hfConfig", "config.json", "config.json is text; it must be a block of fields: the content"),
        ("spec.model.peft.method", "qlora", "qlora is not allowed; did you mean lora, with baseQuantization: nf4? use"),
        ("spec.model.peft.r", 8, "this field is unknown; did you mean rank? allowed are"),
    ],
)
def test_a_value_of_the_wrong_form_shows_the_right_form(path: str, value: object, advice: str) -> None:
    assert problems(put(WHOLE, path, value))[path].startswith(advice)


def test_a_wrong_item_shows_the_right_form() -> None:
    found = problems(put(WHOLE, "spec.tuning.space.checkpointing", [2]))
    (advice,) = found.values()
    assert advice.startswith("2 is a number; it must be a way of checkpointing; use none, selective,")


def test_a_truth_value_is_no_choice() -> None:
    advice = problems(put(WHOLE, "spec.tuning.mode", False))["spec.tuning.mode"]
    assert advice == "false is not allowed; use Probe, PredictOnly or Fixed"


def test_a_missing_field_is_named() -> None:
    job = copy.deepcopy(WHOLE)
    del job["spec"]["training"]["sequenceLength"], job["spec"]["model"]["architecture"]["layers"]
    assert set(problems(job)) == {"spec.training.sequenceLength", "spec.model.architecture.layers"}


def test_an_item_given_twice_is_named() -> None:
    path = "spec.tuning.space.zeroStages"
    assert problems(put(WHOLE, path, [1, 2, 1])) == {path: "1 is given twice; take one out"}


def test_a_wrong_item_is_named_once_with_its_place() -> None:
    found = problems(put(WHOLE, "spec.tuning.space.precision", ["bf17"]))
    assert list(found) == ["spec.tuning.space.precision[0]"]


def test_all_problems_are_reported_on_a_line_each() -> None:
    job = put(put(WHOLE, "spec.suspend", 1), "metadata.name", "Not A Name")
    with pytest.raises(SpecError) as caught:
        load_job(job)
    lines = str(caught.value).splitlines()
    assert [line.partition(":")[0] for line in lines] == ["metadata.name", "spec.suspend"]


def test_a_huge_value_is_cut_in_the_message() -> None:
    advice = problems(put(WHOLE, "spec.training.optimizer", "x" * 1_000_000))["spec.training.optimizer"]
    assert len(advice) < 200


@pytest.mark.parametrize("data", [None, [], "text", 7])
def test_a_document_that_is_no_object_is_refused(data: Any) -> None:
    with pytest.raises(SpecError, match="not a MemoryTunedJob"):
        load_job(data)


def test_another_kind_is_refused() -> None:
    found = problems({**WHOLE, "kind": "Deployment", "apiVersion": "apps/v1"})
    assert set(found) == {"kind", "apiVersion"}
