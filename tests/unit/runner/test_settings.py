"""The runner's settings: the operator's variables are read back, and invalid ones are named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from memtune.plans.plan import Plan
from memtune.wire.report import Device
from memtune.wire.run import RunKind
from memtune_runner.rank.settings import SettingsError, read_settings

PLAN = Plan.parse("bf16-z2-sel-mb4x2")
VARIABLES = {
    "MEMTUNE_PLAN": json.dumps(PLAN.to_json()),
    "MEMTUNE_RUN_KIND": "train",
    "MEMTUNE_GLOBAL_BATCH": "16",
    "MEMTUNE_SEQUENCE_LENGTH": "128",
    "MEMTUNE_GPUS_PER_NODE": "2",
}


def test_the_variables_of_a_run_are_read() -> None:
    settings = read_settings({**VARIABLES, "MEMTUNE_ATTEMPT": "3", "MEMTUNE_CHECKPOINT_PATH": "/checkpoints"})
    assert (settings.plan, settings.kind, settings.world) == (PLAN, RunKind.TRAIN, 2)
    assert (settings.attempt, settings.checkpoint_path) == (3, Path("/checkpoints"))
    assert settings.integration == "env"
    assert not settings.is_probe


def test_a_plan_may_be_in_its_short_form() -> None:
    assert read_settings({**VARIABLES, "MEMTUNE_PLAN": str(PLAN)}).plan == PLAN


def test_a_virtual_gpu_has_a_size() -> None:
    virtual = {**VARIABLES, "MEMTUNE_DEVICE": "virtual"}
    assert read_settings({**virtual, "MEMTUNE_GPU_MEMORY_BYTES": "1024"}).device is Device.VIRTUAL
    with pytest.raises(SettingsError, match="MEMTUNE_GPU_MEMORY_BYTES is missing"):
        read_settings(virtual)


def test_an_emulated_gpu_has_a_name_and_a_size() -> None:
    size = {**VARIABLES, "MEMTUNE_DEVICE": "emulated", "MEMTUNE_GPU_MEMORY_BYTES": "1024"}
    whole = {**size, "MEMTUNE_GPU_NAME": "h100-80gb", "MEMTUNE_SHRINK": "30:512"}
    assert read_settings(whole).budget_from_step == {30: 512}
    with pytest.raises(SettingsError, match="MEMTUNE_GPU_NAME is missing"):
        read_settings(size)
    with pytest.raises(SettingsError, match="MEMTUNE_GPU_MEMORY_BYTES is missing"):
        read_settings({**whole, "MEMTUNE_GPU_MEMORY_BYTES": ""})


def shrinking(**variables: str) -> dict[int, int]:
    virtual = {"MEMTUNE_DEVICE": "virtual", "MEMTUNE_GPU_MEMORY_BYTES": "2048", "MEMTUNE_SHRINK": "30:1024"}
    return read_settings({**VARIABLES, **virtual, **variables}).budget_from_step


def test_a_virtual_gpu_loses_memory_at_a_training_step() -> None:
    assert shrinking() == {30: 1024}
    assert shrinking(MEMTUNE_RESUME_SAMPLES=str(25 * 16)) == {5: 1024}, "it resumes from step 25"
    assert shrinking(MEMTUNE_RESUME_SAMPLES=str(40 * 16)) == {0: 1024}, "what was lost stays lost"
    short = {"MEMTUNE_RESUME_STEP": "25", "MEMTUNE_RESUME_SAMPLES": str(24 * 16 + 3)}
    assert shrinking(**short) == {5: 1024}, "the last step of its epoch was a short one"
    assert shrinking(MEMTUNE_RUN_KIND="probe") == {}, "a probe is no part of the training"


def test_a_plan_that_offloads_to_a_disk_needs_one() -> None:
    variables = {**VARIABLES, "MEMTUNE_PLAN": "bf16-z3-none-mb4x2-onvme"}
    with pytest.raises(SettingsError, match=r"MEMTUNE_NVME_PATH is missing: .* give resources\.nvmePath"):
        read_settings(variables)
    assert read_settings({**variables, "MEMTUNE_NVME_PATH": "/mnt/nvme"}).nvme_path == Path("/mnt/nvme")


def test_no_memory_is_taken_away_from_a_real_gpu() -> None:
    with pytest.raises(SettingsError, match="MEMTUNE_SHRINK is for virtual and emulated GPUs"):
        read_settings({**VARIABLES, "MEMTUNE_SHRINK": "30:1024"})


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("MEMTUNE_PLAN", "", "is not set"),
        ("MEMTUNE_PLAN", "bf16-z9-none-mb1x1", "z9"),
        ("MEMTUNE_PLAN", '{"zero": 3}', "unknown fields"),
        ("MEMTUNE_PLAN", "{", "MEMTUNE_PLAN="),
        ("MEMTUNE_RUN_KIND", "dance", "dance"),
        ("MEMTUNE_GLOBAL_BATCH", "0", "at least 1"),
        ("MEMTUNE_GLOBAL_BATCH", "17", "they must be equal"),
        ("MEMTUNE_NODE_RANK", "-1", "at least 0"),
        ("MEMTUNE_NODE_RANK", "one", "at least 0"),
        ("MEMTUNE_NODE_RANK", "1", "MEMTUNE_NODE_RANK=1: with MEMTUNE_NODES=1 it goes from 0 to 0"),
        ("MEMTUNE_DEVICE", "tpu", "tpu"),
        ("MEMTUNE_INTEGRATION", "magic", "env, hf-trainer"),
        ("MEMTUNE_ARCHITECTURE", "[]", "not an object"),
        ("MEMTUNE_SHRINK", "30", "at least 1"),
        ("MEMTUNE_MEMORY_SHARE", "50%", "could not convert"),
        ("MEMTUNE_MEMORY_SHARE", "1", "not a share between 0 and 1"),
        ("MEMTUNE_REPORT_LOG_TAIL", "yes", "neither 0 nor 1"),
    ],
)
def test_an_invalid_variable_is_named(name: str, value: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        read_settings({**VARIABLES, name: value})
