"""Loops that train on images: one that DeepSpeed's configuration drives, and one in the manner of image libraries."""

from __future__ import annotations

from pathlib import Path

from script_runs import CHECKPOINTS, PROGRAMS, job, run, shrinking

# MemTune knows no convolutions: the plan is given, and what is predicted of this model decides nothing.
MODEL = {"architecture": {"hiddenSize": 32, "layers": 2, "heads": 2, "ffnSize": 64, "vocabSize": 128}}
TRAINING = {"globalBatchSize": 8, "sequenceLength": 256, "attention": "sdpa"}
RESTARTS = {"allowRestart": True}


def test_a_loop_of_deepspeeds_takes_its_configuration(tmp_path: Path) -> None:
    script = PROGRAMS / "images_deepspeed.py"
    configured = ["--deepspeed", "--deepspeed_config", "$(MEMTUNE_DEEPSPEED_CONFIG)"]
    command = ["deepspeed", str(script), "--output", f"{CHECKPOINTS}/run", *configured]
    tuning = {"mode": "Fixed", "plan": "bf16-z1-none-mb4x2-sdpa", "space": {"zeroStages": [1]}}
    ended = run(job(command, "", "env", model=MODEL, training=TRAINING, tuning=tuning), tmp_path)
    ended.check_applied()
    assert ended.samples == 96, "two epochs of 48"


def test_a_plain_loop_recovers_from_the_start_where_it_tells_of_no_checkpoint(tmp_path: Path) -> None:
    batches = ["--batch-size", "$(MEMTUNE_MICRO_BATCH)", "--grad-accum-steps", "$(MEMTUNE_ACCUMULATION)"]
    command = ["python", str(PROGRAMS / "images_plain.py"), *batches, "--amp", "--output", f"{CHECKPOINTS}/run"]
    body = job(
        command,
        "bf16-ddp-none-mb8x1-sdpa",
        "env",
        model=MODEL,
        training=TRAINING,
        retry=RESTARTS,
        resources=shrinking("32Mi", 3, "55%"),
    )
    ended = run(body, tmp_path)
    first, last = ended.status["attempts"][0], ended.status["attempts"][-1]
    assert (first["verdict"], last["verdict"], last["resume"]) == ("device-oom", "succeeded", "no")
    ended.check_applied()
    assert ended.samples == 96, "two epochs of 48"
