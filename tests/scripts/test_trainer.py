"""transformers' Trainer with a metric of its own: its training, and evaluations that could not have smaller batches."""

from __future__ import annotations

from pathlib import Path

from script_models_and_data import HF_CONFIG, Material, save_llama
from script_runs import CHECKPOINTS, PROGRAMS, job, run, shrinking


def test_an_evaluation_recovers_that_collects_too_many_outputs_on_the_gpu(material: Material, tmp_path: Path) -> None:
    command = ["python", str(PROGRAMS / "metrics_trainer.py"), str(material.llama), str(material.texts)]
    plan = "bf16-ddp-none-mb1x8-sdpa"
    # The logits of eleven rows are the first tensor that needs a segment of 20 MiB.
    ended = run(job([*command, f"{CHECKPOINTS}/run"], plan, resources=shrinking("64Mi", 1, "72%")), tmp_path)
    first, last = ended.status["attempts"]
    assert (first["verdict"], first["outOfMemory"], first["evaluationBatch"]) == ("device-oom", "evaluation", 1)
    assert (last["verdict"], last["plan"], last["rung"]) == ("succeeded", plan, "evaluation-outputs")
    assert last["resumedSamples"] == 8
    ended.check_applied()
    assert ended.samples == 32
    assert "'eval_rows': '48'" in ended.printed


def test_a_trainer_recovers_in_training_with_the_same_losses(material: Material, tmp_path: Path) -> None:
    # So wide that a step takes more than the outputs that an evaluation collects.
    config = {**HF_CONFIG, "intermediate_size": 4096}
    model = save_llama(tmp_path / "model", config)
    command = ["python", str(PROGRAMS / "metrics_trainer.py"), str(model), str(material.texts), f"{CHECKPOINTS}/run"]
    body = job(command, "bf16-ddp-none-mb8x1-sdpa", model={"hfConfig": config})
    whole = run(body, tmp_path / "whole")
    body["spec"]["resources"] = shrinking("128Mi", 3, "65%")
    shrunk = run(body, tmp_path / "shrunk")
    assert shrunk.status["attempts"][0]["phase"] == "forward"
    whole.check_applied()
    assert whole.samples == 32
    shrunk.check_recovered(whole.losses, resumed=24, samples=32)
