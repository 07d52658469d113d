"""A loop that is configured as nanoGPT is: probed, launched, out of memory, and resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from script_runs import CHECKPOINTS, PROGRAMS, Ended, job, run, shrinking

SHAPE = {"hiddenSize": 64, "layers": 2, "heads": 2, "ffnSize": 256, "gatedFfn": False, "vocabSize": 256}
TRAINING = {"globalBatchSize": 64, "sequenceLength": 64, "attention": "sdpa"}
SPACE = {"precision": ["bf16"], "checkpointing": ["none"], "backends": ["ddp"]}
TUNING = {"space": SPACE, "maxProbes": 2, "probeSteps": 2}


def train(directory: Path, *more: str, **spec: Any) -> Ended:
    directory.mkdir(parents=True, exist_ok=True)
    text = directory / "input.txt"
    text.write_bytes(b"".join(b"%d birds see %d cats. " % (n, n * n) for n in range(2000)))
    settings = [
        "--batch_size=$(MEMTUNE_MICRO_BATCH)",
        "--gradient_accumulation_steps=$(MEMTUNE_GLOBAL_ACCUMULATION)",
        f"--out_dir={CHECKPOINTS}",
        f"--data={text}",
        "--init_from=$(MEMTUNE_RESUME_FROM)",
        *more,
    ]
    command = ["python", str(PROGRAMS / "gpt_configured.py"), *settings]
    blocks = {"model": {"architecture": SHAPE}, "training": TRAINING, "tuning": TUNING, **spec}
    return run(job(command, "", "env", **blocks), directory, succeeds="--max_itres=12" not in more)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    return train(tmp_path_factory.mktemp("undisturbed"))


def test_it_is_probed_and_trained_as_planned(undisturbed: Ended) -> None:
    undisturbed.check_applied()
    assert {probe["verdict"] for probe in undisturbed.status["probes"]} == {"succeeded"}
    assert undisturbed.samples == 12 * 64


def test_it_goes_on_after_an_out_of_memory_with_the_same_losses(undisturbed: Ended, tmp_path: Path) -> None:
    ended = train(tmp_path, resources=shrinking("128Mi", 6, "70%"))
    first, last = ended.status["attempts"]
    assert last["plan"] != first["plan"]
    ended.check_recovered(undisturbed.losses, resumed=4 * 64, samples=12 * 64)


def test_over_two_gpus_it_divides_its_accumulation(tmp_path: Path) -> None:
    resources = {"gpusPerNode": 2, "gpuMemory": "128Mi", "device": "virtual"}
    tuning = {"mode": "Fixed", "plan": "bf16-ddp-none-mb8x4-sdpa", "space": SPACE}
    ended = train(tmp_path, resources=resources, tuning=tuning)
    assert (ended.reports[0].applied.micro_steps, ended.reports[0].applied.backend) == (4, "ddp")
    assert ended.status["trainedSamples"] == 12 * 64


def test_a_mistake_in_its_settings_is_reported(tmp_path: Path) -> None:
    ended = train(tmp_path, "--max_itres=12")
    assert "unknown setting: --max_itres=12" in ended.status["message"]
