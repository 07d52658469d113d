"""Loops that train on images: one that DeepSpeed's configuration drives, and one in the manner of timm's."""

from __future__ import annotations

from pathlib import Path

from script_runs import CHECKPOINTS, PROGRAMS, job, run, shrinking

# MemTune knows no convolutions: the plan is given, and what is predicted of this model decides nothing.
MODEL = {"architecture": {"hiddenSize": 32, "layers": 2, "heads": 2, "ffnSize": 64, "vocabSize": 128}}
TRAINING = {"globalBatchSize": 8, "sequenceLength": 256, "attention": "sdpa"}


def test_a_loop_of_deepspeeds_recovers_in_training_with_the_same_losses(tmp_path: Path) -> None:
    configured = ["--deepspeed", "--deepspeed_config", "$(MEMTUNE_DEEPSPEED_CONFIG)"]
    saves = ["--output", f"{CHECKPOINTS}/run", "--resume", "$(MEMTUNE_RESUME_FROM)"]
    command = ["deepspeed", str(PROGRAMS / "images_deepspeed.py"), *saves, *configured]
    space = {"zeroStages": [1], "checkpointing": ["none"], "backends": ["deepspeed"]}
    tuning = {"mode": "Fixed", "plan": "bf16-z1-none-mb8x1-sdpa-bk1m", "space": space}
    body = job(command, "", "env", model=MODEL, training=TRAINING, tuning=tuning)
    whole = run(body, tmp_path / "whole")
    body["spec"]["resources"] = shrinking("128Mi", 8, "58%")
    shrunk = run(body, tmp_path / "shrunk")
    whole.check_applied()
    assert whole.samples == 96, "two epochs of 48"
    assert sorted(whole.losses) == list(range(1, 13))
    shrunk.check_recovered(whole.losses, resumed=48, samples=96)


def test_a_loop_of_timms_recovers_in_training_with_the_same_losses(tmp_path: Path) -> None:
    batches = ["--batch-size", "$(MEMTUNE_MICRO_BATCH)", "--grad-accum-steps", "$(MEMTUNE_ACCUMULATION)"]
    saves = ["--output", f"{CHECKPOINTS}/run", "--resume", "$(MEMTUNE_RESUME_FROM)"]
    command = ["python", str(PROGRAMS / "images_timm.py"), *batches, *saves, "--amp"]
    body = job(command, "bf16-ddp-none-mb8x1-sdpa", "env", model=MODEL, training=TRAINING)
    whole = run(body, tmp_path / "whole")
    body["spec"]["resources"] = shrinking("128Mi", 8, "65%")
    shrunk = run(body, tmp_path / "shrunk")
    whole.check_applied()
    assert whole.samples == 144, "three epochs of 48"
    assert sorted(whole.losses) == list(range(1, 19))
    shrunk.check_recovered(whole.losses, resumed=48, samples=144, rel=2e-3)
