"""The scripts of examples/scripts, each under its plan on virtual GPUs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from small_trainings import PROBE, SCRIPTS, Workers, assert_followed_plan, fine_tune, run

from memtune.plans.plan import Plan
from memtune.wire.applied import mismatch
from memtune.wire.report import Ending, Phase

pytestmark = pytest.mark.long

PROGRAMS = Path(__file__).parents[2] / "support" / "programs"
# Each integration is also started as users have it: the hooks are there before the libraries. A plan of DeepSpeed
# imports the most of them.
ANEW = Workers(anew=True)
_STOPS_EARLY = """
import sys, torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(9):
    model(torch.randn(4, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 2 and sys.argv[1] == "within":
        raise OSError("the upload failed")
    if step == 2:
        break


def upload():
    raise OSError("the upload failed")


upload()
"""


@pytest.mark.parametrize(
    ("script", "plan", "world"),
    [
        ("ddp_loop", "bf16-ddp-none-mb4x2", 1),
        ("ddp_loop", "bf16-ddp-none-mb4x2", 2),
        ("fsdp2_loop", "bf16-fsdp-none-mb4x2", 2),
    ],
)
def test_plain_loops_take_the_plan_from_the_environment(script: str, plan: str, world: int, tmp_path: Path) -> None:
    workers = ANEW if world == 1 else Workers()
    outcomes = workers.run(SCRIPTS / f"{script}.py", plan, tmp_path, world, **PROBE)
    assert_followed_plan(outcomes, plan)
    assert outcomes[0].report.applied.backend == Plan.parse(plan).sharding.backend


@pytest.mark.parametrize("world", [1, 2])
def test_a_script_that_shards_in_its_own_way_is_caught(world: int, tmp_path: Path) -> None:
    plan = Plan.parse("bf16-fsdpsgo-none-mb4x2")
    outcomes = run(SCRIPTS / "fsdp2_loop.py", str(plan), tmp_path, world, **PROBE)
    found = {mismatch(plan, outcome.report.applied, world, is_probe=True) for outcome in outcomes}
    assert len(found) == 1
    assert found.pop().startswith(f"applied.sharding is fsdp, but plan {plan} asks for fsdpsgo")


def test_a_plain_loop_resumes_from_the_checkpoint_it_reported(tmp_path: Path) -> None:
    store, plan, script = tmp_path / "store", "bf16-ddp-none-mb4x2", SCRIPTS / "checkpointed_loop.py"
    ((_, whole, said),) = run(script, plan, tmp_path, CHECKPOINT_PATH=str(store), RUN="own-train-1", ATTEMPT="1")
    assert (whole.checkpoint_samples, whole.checkpoint_format) == (12 * 8, "script"), said[-3000:]
    named = {"CHECKPOINT_PATH": str(store), "RUN": "own-train-2", "ATTEMPT": "2", "RESUME_SAMPLES": "64"}
    ((_, _, again),) = run(script, plan, tmp_path, 1, RESUME_FROM=str(store / "own-train-1-step-8"), **named)
    losses = [line for line in said.splitlines() if line.startswith("step ")]
    assert [line for line in again.splitlines() if line.startswith("step ")] == losses[8:], again[-3000:]


@pytest.mark.parametrize(
    ("plan", "world", "blocks"),
    [("bf16-ddp-every2-mb4x2", 1, 1), ("bf16-fsdp-full-mb4x2", 2, 2), ("bf16-z3-none-mb2x4", 1, 0)],
)
def test_a_loop_over_the_engine_follows_its_plan(plan: str, world: int, blocks: int, tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    variables = {**PROBE, "INTEGRATION": "sdk", "CHECKPOINT_PATH": store}
    workers = ANEW if Plan.parse(plan).sharding.backend == "deepspeed" else Workers()
    outcomes = workers.run(SCRIPTS / "sdk_loop.py", plan, tmp_path, world, **variables)
    assert_followed_plan(outcomes, plan)
    applied = outcomes[0].report.applied
    assert (applied.backend, applied.checkpointed_blocks) == (Plan.parse(plan).sharding.backend, blocks)


@pytest.mark.parametrize("world", [1, 2])
def test_a_loop_that_draws_its_batches_goes_on_with_those_that_were_left(world: int, tmp_path: Path) -> None:
    store, script = tmp_path / "store", SCRIPTS / "characters.py"
    words = ["--batch_size=4", f"--gradient_accumulation_steps={2 * world}", f"--out_dir={store}"]
    variables = {"CHECKPOINT_PATH": str(store), "RUN": "own-train-1", "ATTEMPT": "1"}
    (_, whole, said), *_ = run(script, "bf16-ddp-none-mb4x2", tmp_path, world, words, **variables)
    assert (whole.checkpoint_samples, whole.trained_samples) == (12 * 8 * world, 12 * 8), said[-3000:]
    checkpoint = str(store / "own-train-1-8")
    # As many draws in smaller batches.
    words = ["--batch_size=2", f"--gradient_accumulation_steps={4 * world}", *words[2:], f"--init_from={checkpoint}"]
    variables |= {"RUN": "own-train-2", "ATTEMPT": "2", "RESUME_FROM": checkpoint, "RESUME_SAMPLES": str(64 * world)}
    (_, rest, again), *_ = run(script, "bf16-ddp-none-mb2x4", tmp_path, world, words, **variables)
    assert (rest.trained_samples, rest.warnings) == (12 * 8, ""), again[-3000:]
    losses, left = ([line for line in each.splitlines() if line.startswith("step ")] for each in (said, again))
    assert [line.split()[1] for line in left] == ["9", "10", "11", "12"]
    for line, expected in zip(left, losses[8:], strict=True):
        assert float(line.split()[3]) == pytest.approx(float(expected.split()[3]), rel=2e-3)


def test_a_loop_over_the_engine_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    store, plan, script = tmp_path / "store", "fp32-fsdp-none-mb4x2", SCRIPTS / "sdk_loop.py"
    variables = {"INTEGRATION": "sdk", "CHECKPOINT_PATH": str(store)}
    ((_, whole, said),) = run(script, plan, tmp_path, 1, RUN="own-train-1", ATTEMPT="1", **variables)
    assert (whole.steps, whole.checkpoint_samples, whole.trained_samples) == (12, 12 * 8, 12 * 8), said[-3000:]
    (middle,) = (each.parent for each in store.glob("*/engine.pt") if torch.load(each)["samples"] == 8 * 8)
    resumed = {"RUN": "own-train-2", "ATTEMPT": "2", "RESUME_FROM": str(middle), "RESUME_SAMPLES": "64"}
    ((_, _, again),) = run(script, plan, tmp_path, 1, **variables, **resumed)
    losses = [line for line in said.splitlines() if line.startswith("step ")]
    assert [line for line in again.splitlines() if line.startswith("step ")] == losses[8:], again[-3000:]


@pytest.mark.parametrize(("plan", "blocks"), [("bf16-ddp-full-mb4x4", 2), ("bf16-z2-none-mb2x4", 0)])
def test_the_trainers_arguments_are_replaced(plan: str, blocks: int, tmp_path: Path) -> None:
    variables = {**PROBE, "INTEGRATION": "hf-trainer", "SEQUENCE_LENGTH": "48"}
    workers = ANEW if Plan.parse(plan).sharding.backend == "deepspeed" else Workers()
    outcomes = workers.run(SCRIPTS / "hf_trainer.py", plan, tmp_path, 1, **variables)
    assert_followed_plan(outcomes, plan)
    applied = outcomes[0].report.applied
    # The data has 32 tokens per row: a probe pads them, and its steps have two micro-batches.
    assert applied.largest_tokens == Plan.parse(plan).micro_batch * 48
    assert (applied.micro_steps, applied.checkpointed_blocks) == (2, blocks)
    assert (outcomes[0].report.save_covered, outcomes[0].report.evaluation_covered) == (True, True)


@pytest.mark.parametrize(
    ("stops_early", "fails", "words"),
    [
        (True, "behind", "after its training had ended: "),
        (False, "behind", "after its training had ended: "),
        (False, "within", ""),
    ],
)
def test_a_failure_after_the_training_is_reported_as_such(
    stops_early: bool, fails: str, words: str, tmp_path: Path
) -> None:
    arguments = [str(tmp_path / "saves"), fails, *(["--stop"] if stops_early else [])]
    variables = {"INTEGRATION": "hf-trainer", "RUN": "own-train-1", "ATTEMPT": "1"}
    script, plan = PROGRAMS / "trains_and_fails.py", "bf16-ddp-none-mb4x2"
    ((_, report, said),) = run(script, plan, tmp_path, 1, arguments, **variables)
    assert report.message == f"{words}OSError: the upload failed", said[-3000:]
    assert report.steps == {"within": 2, "behind": 3 if stops_early else 8}[fails]


def test_a_failure_after_a_lightning_fit_is_reported_as_such(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    example = (SCRIPTS / "lightning_trainer.py").read_text().replace("from __future__ import annotations", "")
    script.write_text(
        f"import sys\nsys.path.insert(0, {str(SCRIPTS)!r})\n{example}\nraise OSError('the upload failed')\n"
    )
    variables = {"INTEGRATION": "lightning", "RUN": "own-train-1", "ATTEMPT": "1"}
    ((_, report, said),) = run(script, "bf16-ddp-none-mb4x2", tmp_path, 1, **variables)
    assert report.message == "after its training had ended: OSError: the upload failed", said[-3000:]


@pytest.mark.parametrize(("fails", "words"), [("within", ""), ("behind", "after its training had ended: ")])
def test_a_failure_after_an_early_stop_is_reported_as_such(fails: str, words: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(_STOPS_EARLY)
    variables = {"INTEGRATION": "env", "RUN": "own-train-1", "ATTEMPT": "1"}
    ((_, report, said),) = run(script, "fp32-ddp-none-mb4x1", tmp_path, 1, [fails], **variables)
    assert report.message == f"{words}OSError: the upload failed", said[-3000:]
    assert report.steps == 3


@pytest.mark.parametrize("integration", ["hf-trainer", "accelerate"])
def test_a_probe_that_runs_out_of_memory_in_a_save_says_so(integration: str, tmp_path: Path) -> None:
    told = [integration, str(tmp_path / "saves")]
    variables = {**PROBE, "INTEGRATION": integration}
    ((_, report, said),) = run(PROGRAMS / "saves_on_gpu.py", "bf16-ddp-none-mb4x2", tmp_path, 1, told, **variables)
    assert (report.ending, report.phase) == (Ending.DEVICE_OOM, Phase.SAVE), said[-3000:]


def test_a_preference_pair_is_one_sample_and_the_reference_model_no_evaluation(tmp_path: Path) -> None:
    script, plan = PROGRAMS / "preference_trainer.py", "bf16-ddp-none-mb4x2"
    ((_, report, said),) = run(script, plan, tmp_path, INTEGRATION="hf-trainer")
    assert report.applied.micro_batch == 4, said[-3000:]
    # 36 samples in steps of 8: the last one has fewer.
    assert (report.applied.samples_per_step, report.steps) == (8, 5)
    assert report.applied.evaluation_batch == 4
    ((_, probe, _),) = run(script, plan, tmp_path, 1, **PROBE, INTEGRATION="hf-trainer")
    assert (probe.steps, probe.evaluation_covered) == (int(PROBE["PROBE_STEPS"]), True)


def test_a_model_and_texts_of_ones_own_are_fine_tuned(tmp_path: Path) -> None:
    plan = "bf16-ddp-every2-mb4x2"
    arguments = fine_tune(tmp_path)
    outcomes = run(SCRIPTS / "finetune.py", plan, tmp_path, 1, arguments, **PROBE, INTEGRATION="hf-trainer")
    assert_followed_plan(outcomes, plan)
    report = outcomes[0].report
    assert (report.applied.checkpointed_blocks, report.save_covered, report.evaluation_covered) == (1, True, False)


@pytest.mark.parametrize(
    ("plan", "world"),
    [("bf16-ddp-sel-mb4x2", 1), ("bf16-ddp-sel-mb4x2", 2), ("bf16-z1-none-mb4x4", 1), ("bf16-z2-none-mb2x4", 2)],
)
def test_the_accelerator_is_replaced(plan: str, world: int, tmp_path: Path) -> None:
    workers = ANEW if plan.startswith("bf16-z1") else Workers()
    outcomes = workers.run(SCRIPTS / "accelerate_loop.py", plan, tmp_path, world, **PROBE, INTEGRATION="accelerate")
    assert_followed_plan(outcomes, plan)
    assert (outcomes[0].report.save_covered, outcomes[0].report.evaluation_covered) == (True, True)


@pytest.mark.parametrize(("step", "first"), [(3, 4), (6, 7)])
def test_a_loop_with_accelerate_goes_on_at_its_epoch_and_batch(step: int, first: int, tmp_path: Path) -> None:
    saves, script = tmp_path / "saves", SCRIPTS / "accelerate_loop.py"
    variables = {"INTEGRATION": "accelerate", "CHECKPOINT_PATH": str(saves)}
    ((_, whole, said),) = run(script, "fp32-ddp-none-mb4x4", tmp_path, 1, [str(saves)], **variables, ATTEMPT="1")
    assert (whole.steps, whole.trained_samples, whole.total_samples) == (12, 192, 192), said[-3000:]
    checkpoint = str(saves / f"step_{step}")
    variables |= {"RESUME_FROM": checkpoint, "RESUME_SAMPLES": str(step * 16), "ATTEMPT": "2"}
    ((_, rest, again),) = run(script, "fp32-ddp-none-mb8x2", tmp_path, 1, [str(saves), checkpoint], **variables)
    assert (rest.steps, rest.trained_samples, rest.total_samples, rest.warnings) == (12 - step, 192, 192, "")
    steps = [line.split(" loss ")[0] for line in again.splitlines() if line.startswith("step ")]
    assert steps[0] == f"step {first} of epoch {(first - 1) // 4 + 1}"
    evaluated = [line for line in said.splitlines() if line.startswith("evaluated ")]
    assert again.splitlines()[-1] == evaluated[-1], "it came to the same model"


@pytest.mark.parametrize("plan", ["bf16-ddp-full-mb4x2", "bf16-z1-full-mb4x2"])
def test_a_model_that_comes_in_evaluation_mode_is_checkpointed_and_evaluated(plan: str, tmp_path: Path) -> None:
    outcomes = run(PROGRAMS / "language_modeling.py", plan, tmp_path, 1, **PROBE, INTEGRATION="accelerate")
    assert_followed_plan(outcomes, plan)
    report = outcomes[0].report
    assert (report.applied.checkpointed_blocks, report.evaluation_covered, report.save_covered) == (2, True, True)


@pytest.mark.parametrize(
    ("kind", "plan", "world"),
    [
        ("streamed", "fp32-ddp-none-mb4x2", 1),
        ("streamed", "fp32-ddp-none-mb4x2", 2),
        ("streamed-by-a-worker", "fp32-z1-none-mb4x2-bk1m", 1),
        ("streamed-batches", "fp32-ddp-none-mb4x2", 1),
        ("batch-sampler", "fp32-ddp-none-mb4x2", 1),
        ("of-its-own-class", "fp32-ddp-none-mb4x2", 1),
        ("flattened", "fp32-ddp-none-mb1x2", 1),  # with positions beside the tokens
    ],
)
def test_loaders_of_every_kind_give_the_micro_batch(kind: str, plan: str, world: int, tmp_path: Path) -> None:
    # The data has 32 tokens per row: a probe pads them.
    variables = {**PROBE, "INTEGRATION": "accelerate", "SEQUENCE_LENGTH": "48"}
    outcomes = run(PROGRAMS / "accelerate_loaders.py", plan, tmp_path, world, [kind], **variables)
    assert_followed_plan(outcomes, plan)
    assert outcomes[0].report.applied.largest_tokens == Plan.parse(plan).micro_batch * 48


@pytest.mark.parametrize(
    ("script", "integration", "plan"),
    [
        ("hf_trainer", "hf-trainer", "bf16-fsdp-full-mb4x4"),
        ("accelerate_loop", "accelerate", "bf16-fsdp-sel-mb4x4"),
    ],
)
def test_fsdp_shards_as_its_plan_says(script: str, integration: str, plan: str, tmp_path: Path) -> None:
    fsdp = Workers(PROGRAMS / "fsdp_on_cpu.py")
    outcomes = fsdp.run(SCRIPTS / f"{script}.py", plan, tmp_path, 1, (), **PROBE, INTEGRATION=integration)
    assert_followed_plan(outcomes, plan)
    report = outcomes[0].report
    assert (report.applied.backend, report.applied.checkpointed_blocks) == ("fsdp", 2)
    assert (report.save_covered, report.evaluation_covered) == (True, True)


def test_deepspeeds_own_count_is_taken(tmp_path: Path) -> None:
    """ZeRO-3 with several sub-groups, accumulation, and gradients that overflow once."""
    (outcome,) = run(PROGRAMS / "deepspeed_steps.py", "fp16-z3-none-mb2x4-bk1m", tmp_path)
    assert outcome.exit_code == 0, outcome.output[-3000:]
    counted = json.loads(outcome.output.strip().splitlines()[-1])
    assert counted["skipped"] == 1
    assert counted["sub_groups"] > 1
    assert outcome.report.skipped_steps == counted["skipped"]
    assert outcome.report.steps == counted["steps"] - counted["skipped"] == 2
    assert outcome.report.trained_samples == 3 * 8, "a step that is skipped has taken its samples"
    assert outcome.report.total_samples is None
    assert (outcome.report.applied.zero_stage, outcome.report.applied.micro_steps) == (3, 4)
    assert (outcome.report.applied.weight_dtype, outcome.report.applied.compute_dtype) == ("float16", "float16")
