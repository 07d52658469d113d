"""The variables of a worker: allocator settings, torchrun's names, what a plan sets and what it leaves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from memtune.plans.plan import Plan
from memtune.wire.report import Device
from memtune.wire.run import RunKind
from memtune_runner.launch.variables import of_worker, with_resume
from memtune_runner.rank import allocator_settings, preflight, ranks
from memtune_runner.rank.bad_input import BadInputError
from memtune_runner.rank.preflight import check_worker, is_new_enough, mig_devices
from memtune_runner.rank.ranks import Rank
from memtune_runner.rank.settings import Settings

PLAIN = Plan.parse("bf16-z2-sel-mb4x2")
EXPANDABLE = Plan.parse("bf16-z2-sel-mb4x2-exp-split256")
SETTINGS = Settings(PLAIN, RunKind.TRAIN, "env", 16, 128, run="llama-train-1", gpus_per_node=2)


@pytest.mark.parametrize(
    ("plan", "own", "merged"),
    [
        (PLAIN, {}, "expandable_segments:False"),
        (EXPANDABLE, {}, "expandable_segments:True,max_split_size_mb:256"),
        (PLAIN, {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, "expandable_segments:False"),
        (PLAIN, {"PYTORCH_ALLOC_CONF": "max_split_size_mb:64"}, "expandable_segments:False"),
        (
            EXPANDABLE,
            {"PYTORCH_CUDA_ALLOC_CONF": "roundup_power2_divisions:[256:1,512:2], max_split_size_mb:9"},
            "roundup_power2_divisions:[256:1,512:2],expandable_segments:True,max_split_size_mb:256",
        ),
        (
            PLAIN,
            {"PYTORCH_ALLOC_CONF": "backend:native", "PYTORCH_CUDA_ALLOC_CONF": "garbage_collection_threshold:0.8"},
            "backend:native,expandable_segments:False",
        ),
    ],
)
def test_the_plan_sets_its_variables_and_keeps_the_others(plan: Plan, own: dict[str, str], merged: str) -> None:
    found = allocator_settings.variables(plan, own)
    assert found == {"PYTORCH_ALLOC_CONF": merged, "PYTORCH_CUDA_ALLOC_CONF": merged}
    assert allocator_settings.variables(plan, found) == found


def test_ranks_are_numbered_over_the_nodes_and_read_back() -> None:
    second = ranks.of_node(1, 2, 3)
    assert second == [Rank(2, 0, 6, 2, 1), Rank(3, 1, 6, 2, 1)]
    assert [Rank.read(rank.variables()) for rank in second] == second
    assert second[0].variables()["GROUP_WORLD_SIZE"] == "3"
    assert Rank.read({}) == Rank()


def test_a_worker_has_torchruns_variables() -> None:
    found = of_worker(SETTINGS, {}, is_program=False)
    assert (found["TORCHELASTIC_RUN_ID"], found["OMP_NUM_THREADS"]) == ("llama-train-1", "1")
    assert not {"CUDA_VISIBLE_DEVICES", "PYTHONPATH"} & found.keys()
    assert of_worker(SETTINGS, {"OMP_NUM_THREADS": "8"}, is_program=False)["OMP_NUM_THREADS"] == "8"
    alone = replace(SETTINGS, gpus_per_node=1, global_batch=8)
    assert "OMP_NUM_THREADS" not in of_worker(alone, {}, is_program=False)
    rehearsed = replace(alone, device=Device.VIRTUAL, gpu_memory_bytes=1 << 30)
    assert of_worker(rehearsed, {}, is_program=False)["OMP_NUM_THREADS"] == "1"


def test_a_virtual_gpu_is_the_only_one() -> None:
    virtual = replace(SETTINGS, device=Device.VIRTUAL, gpu_memory_bytes=1)
    assert of_worker(virtual, {}, is_program=False)["CUDA_VISIBLE_DEVICES"] == ""


def test_a_program_finds_the_hooks_before_its_own_python_path() -> None:
    first, own = of_worker(SETTINGS, {"PYTHONPATH": "/own"}, is_program=True)["PYTHONPATH"].split(":")
    assert (Path(first, "sitecustomize.py").exists(), own) == (True, "/own")


def test_a_worker_has_its_checkpoint() -> None:
    resumed = replace(SETTINGS, resume_from=Path("/saves/step-8"), resume_step=9, resume_samples=128)
    found = of_worker(resumed, {}, is_program=False)
    told = [found[f"MEMTUNE_RESUME_{each}"] for each in ("FROM", "STEP", "SAMPLES")]
    assert told == ["/saves/step-8", "9", "128"]
    assert of_worker(SETTINGS, {"MEMTUNE_RESUME_FROM": "/old"}, is_program=False)["MEMTUNE_RESUME_FROM"] == ""


@pytest.mark.parametrize(
    ("version", "is_enough"),
    [("2.6.0", True), ("2.13.0+cpu", True), ("3.0.0a0", True), ("2.5.1+cu124", False), ("1.13", False), ("git", True)],
)
def test_which_torch_is_new_enough(version: str, is_enough: bool) -> None:
    assert is_new_enough(version) is is_enough


def test_mig_slices_are_known_by_their_names() -> None:
    assert mig_devices({"NVIDIA_VISIBLE_DEVICES": "MIG-1a, MIG-2b"}) == ["MIG-1a", "MIG-2b"]
    assert mig_devices({"NVIDIA_VISIBLE_DEVICES": "MIG-1a,MIG-2b", "CUDA_VISIBLE_DEVICES": "MIG-2b"}) == ["MIG-2b"]
    assert mig_devices({"CUDA_VISIBLE_DEVICES": "GPU-1a,GPU-2b"}) == mig_devices({}) == []


@pytest.mark.parametrize("integration", ["env", "hf-trainer", "accelerate", "sdk"])
def test_no_integration_measures_an_offload_on_a_virtual_gpu(integration: str) -> None:
    plan = Plan.parse("bf16-z2-sel-mb4x2-oopt")
    settings = replace(SETTINGS, plan=plan, integration=integration, device=Device.VIRTUAL, gpu_memory_bytes=2**30)
    with pytest.raises(BadInputError, match=f"plan {plan}: offload optimizer cannot be measured on a virtual GPU"):
        check_worker(settings, Rank(0, 0, 1, 1, 0))
    check_worker(replace(settings, plan=PLAIN), Rank(0, 0, 1, 1, 0))


def test_a_plan_of_deepspeed_in_an_image_without_it_names_the_space(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "find_spec", lambda name: None if name == "deepspeed" else object())
    settings = replace(SETTINGS, device=Device.EMULATED, gpu_memory_bytes=2**30, gpu_name="h100-80gb")
    with pytest.raises(BadInputError, match=r"install deepspeed .* or set tuning.space.backends to \[ddp, fsdp\]"):
        check_worker(settings, Rank(0, 0, 1, 1, 0))
    check_worker(replace(settings, plan=Plan.parse("bf16-ddp-sel-mb4x2")), Rank(0, 0, 1, 1, 0))


@pytest.mark.parametrize(
    ("found", "samples", "words"),
    [(None, 0, "--from= --done=0"), (Path("/c/step-4"), 64, "--from=/c/step-4 --done=64")],
)
def test_references_to_the_checkpoint_are_filled_in_once_it_is_found(
    found: Path | None, samples: int, words: str
) -> None:
    told = of_worker(replace(SETTINGS, resume_from=found, resume_samples=samples), {}, is_program=False)
    assert with_resume("--from=$(MEMTUNE_RESUME_FROM) --done=$(MEMTUNE_RESUME_SAMPLES)", told) == words
    assert with_resume("$(MEMTUNE_RUN) $$", told) == "$(MEMTUNE_RUN) $$"
