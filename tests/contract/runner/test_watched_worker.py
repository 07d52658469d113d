"""A watched worker on a virtual GPU: the reports of loops that step, skip, fail, or never train."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.distributed._composable.checkpoint_activation import checkpoint as checkpointed
from torch.utils.checkpoint import checkpoint

import memtune_runner
from memtune.api.status import SENTENCE
from memtune.plans.plan import Plan
from memtune.units import MIB
from memtune.wire.applied import mismatch
from memtune.wire.report import Applied, Device, Ending, Phase, Report, read_report
from memtune.wire.run import RunKind
from memtune_runner.checkpoints.loading import CheckpointLoad
from memtune_runner.checkpoints.store import Store
from memtune_runner.device.statistics import VirtualStatistics
from memtune_runner.engine import activation_checkpointing
from memtune_runner.rank import library_step, phases
from memtune_runner.rank.bad_input import BadInputError, PlanNotAppliedError
from memtune_runner.rank.ranks import Rank, report_path
from memtune_runner.rank.settings import Settings
from memtune_runner.rank.training_length import TrainingLength
from memtune_runner.watch import components, watching
from memtune_runner.watch.engines import compute_dtype
from memtune_runner.watch.rank_report import _samples

RANK = Rank(0, 0, 1, 1, 0)
WIDTH = 16
Loop = Callable[[], None]


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MEMTUNE_RANK_DIRECTORY", str(tmp_path))
    return tmp_path


@pytest.fixture(autouse=True)
def _nothing_stays_hooked() -> Iterator[None]:
    before = (nn.Module.__call__, torch.autograd.backward, torch.autograd.grad, torch.save, list(sys.meta_path))
    yield
    after = (nn.Module.__call__, torch.autograd.backward, torch.autograd.grad, torch.save, list(sys.meta_path))
    assert after == before


def settings_of(plan: str, kind: RunKind = RunKind.TRAIN, budget_bytes: int = 64 * MIB, steps: int = 2) -> Settings:
    parsed = Plan.parse(plan)
    return Settings(
        parsed,
        kind,
        "env",
        parsed.global_batch(1),
        sequence_length=8,
        run="llama-train-0",
        probe_steps=steps,
        device=Device.VIRTUAL,
        gpu_memory_bytes=budget_bytes,
    )


def watched(directory: Path, loop: Loop, settings: Settings) -> Report:
    with watching(settings, RANK):
        loop()
    return read_report(report_path(directory, RANK).read_bytes())


def tokens(rows: int) -> torch.Tensor:
    return torch.randint(0, WIDTH, (rows, 8))


def model_of() -> nn.Sequential:
    return nn.Sequential(nn.Embedding(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))


def train(
    steps: int, rows: int = 4, accumulation: int = 2, model: nn.Module | None = None, optimizers: int = 1
) -> None:
    model = model_of() if model is None else model
    parameters = list(model.parameters())
    made = [torch.optim.AdamW(parameters[number::optimizers], lr=1e-3) for number in range(optimizers)]
    for _ in range(steps):
        for _ in range(accumulation):
            model(tokens(rows)).logsumexp(-1).mean().backward()
        for optimizer in made:
            optimizer.step()
            optimizer.zero_grad()


def test_a_run_that_follows_its_plan_has_no_mismatch(directory: Path) -> None:
    report = watched(directory, lambda: train(steps=3), settings_of("fp32-ddp-none-mb4x2"))
    assert (report.ending, report.steps, report.skipped_steps) == (Ending.SUCCEEDED, 3, 0)
    assert (report.run, report.rank, report.device, report.phase) == ("llama-train-0", 0, Device.VIRTUAL, None)
    assert report.applied == Applied(
        micro_batch=4,
        micro_steps=2,
        samples_per_step=8,
        largest_tokens=32,
        backend="none",
        zero_stage=0,
        weight_dtype="float32",
        gradient_dtype="float32",
        compute_dtype="float32",
        checkpointed_blocks=0,
        optimizer="adamw",
    )
    assert mismatch(Plan.parse("fp32-ddp-none-mb4x2"), report.applied, world=1, is_probe=False) == ""
    memory = report.memory
    assert memory.device_total_bytes == 64 * MIB
    assert 0 < (memory.peak_allocated_bytes or 0) <= (memory.peak_reserved_bytes or 0)
    assert (memory.non_torch_bytes, memory.alloc_retries) == (0, 0)
    assert (memory.largest_free_block_bytes or 0) > 0
    assert report.step_seconds is not None
    assert report.tokens_per_second == pytest.approx(64 / report.step_seconds)
    assert (report.torch, report.driver) == (torch.__version__, None), "a virtual GPU has no driver"
    assert report.length_covered is None, "only a probe covers something"


@pytest.mark.parametrize(
    ("plan", "loop", "field"),
    [
        ("fp32-ddp-none-mb4x2", lambda: train(2, rows=8), "microBatch is 8"),
        ("fp32-ddp-none-mb4x2", lambda: train(2, accumulation=4), "microSteps is 4"),
        ("fp32-z0-none-mb4x2", lambda: train(2), "backend is none"),
        ("fp32-ddp-full-mb4x2", lambda: train(2), "checkpointedBlocks is 0"),
        ("bf16-ddp-none-mb4x2", lambda: train(2), "computeDtype is float32"),
        ("fp32-ddp-none-mb4x2", lambda: train(2, model=model_of().bfloat16()), "computeDtype is bfloat16"),
    ],
)
def test_a_loop_that_ignores_its_plan_is_caught(directory: Path, plan: str, loop: Loop, field: str) -> None:
    report = watched(directory, loop, settings_of(plan))
    assert f"applied.{field}" in mismatch(Plan.parse(plan), report.applied, world=1, is_probe=False)


def test_a_training_in_evaluation_mode_is_compared_and_counted_like_any_other(directory: Path) -> None:
    """Some scripts never call ``train()`` on a pretrained model, or not again after an evaluation."""

    def loop() -> None:
        model = model_of()
        train(1, model=model, rows=8)
        model.eval()
        train(1, model=model, rows=8)
        model(tokens(16))  # an evaluation that computes gradients for nothing
        train(2, model=model, rows=8)

    settings = settings_of("fp32-ddp-none-mb4x2")
    with pytest.raises(PlanNotAppliedError, match="the script's batch is 16"):
        watched(directory, loop, settings)
    report = read_report(report_path(directory, RANK).read_bytes())
    assert (report.steps, report.trained_samples) == (3, 48)
    assert (report.applied.micro_batch, report.applied.micro_steps) == (8, 2)


def test_a_first_pass_in_evaluation_mode_that_runs_out_of_memory_is_that_of_a_training(directory: Path) -> None:
    def loop() -> None:
        train(1, model=nn.Sequential(nn.Embedding(WIDTH, 512), nn.Linear(512, 512)).eval(), rows=4096)

    with pytest.raises(torch.OutOfMemoryError):
        watched(directory, loop, settings_of("fp32-ddp-none-mb4x2"))
    report = read_report(report_path(directory, RANK).read_bytes())
    assert (report.ending, report.phase) == (Ending.DEVICE_OOM, Phase.FORWARD)


def test_gradients_of_another_dtype_are_seen(directory: Path) -> None:
    report = watched(directory, lambda: train(2, model=model_of().bfloat16()), settings_of("bf16-ddp-none-mb4x2"))
    assert (report.applied.weight_dtype, report.applied.gradient_dtype) == ("bfloat16", "bfloat16")


def test_autocast_computes_in_another_dtype_than_the_weights_have(directory: Path) -> None:
    def loop() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            train(2)

    applied = watched(directory, loop, settings_of("bf16-ddp-none-mb4x2")).applied
    assert (applied.weight_dtype, applied.compute_dtype) == ("float32", "bfloat16")


class Checkpointed(nn.Module):
    """Two blocks, the second under reentrant checkpointing, as in older scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.first, self.second = nn.Embedding(WIDTH, WIDTH), model_of()[1], model_of()[1]

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = checkpoint(self.first, self.stem(ids), use_reentrant=False)
        output: torch.Tensor = checkpoint(self.second, hidden, use_reentrant=True)
        return output


def test_checkpointed_blocks_are_counted_once_and_not_again_in_the_backward_pass(directory: Path) -> None:
    report = watched(directory, lambda: train(2, model=Checkpointed()), settings_of("fp32-ddp-full-mb4x2"))
    assert (report.applied.checkpointed_blocks, report.applied.micro_steps) == (2, 2)


def test_a_block_is_counted_where_torch_was_entered_by_a_function_taken_before_the_hooks(directory: Path) -> None:
    # Such a function calls what it found when it was imported. So does torch's own since 2.15: it bypasses the
    # generator that older releases enter.
    model = model_of()
    checkpointed(model[1])
    checkpointed(model[2])
    report = watched(directory, lambda: train(2, model=model), settings_of("fp32-ddp-full-mb4x2"))
    assert (report.applied.checkpointed_blocks, report.applied.micro_steps) == (2, 2)


@pytest.mark.parametrize(("mode", "blocks"), [("full", 4), ("every2", 2)])
def test_blocks_that_the_runner_checkpoints_are_counted_once(mode: str, blocks: int, directory: Path) -> None:
    row = nn.Sequential(*(nn.TransformerEncoderLayer(WIDTH, 2, WIDTH, batch_first=True) for _ in range(4)))
    model, plan = nn.Sequential(nn.Embedding(WIDTH, WIDTH), row), Plan.parse(f"fp32-ddp-{mode}-mb4x2")
    activation_checkpointing.apply(model, plan.checkpointing)
    report = watched(directory, lambda: train(2, model=model), settings_of(str(plan)))
    assert report.applied.checkpointed_blocks == blocks


def test_the_parts_of_a_script_s_own_loss_are_no_blocks(directory: Path) -> None:
    class Fusing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.head = model_of(), nn.Linear(WIDTH, WIDTH)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            hidden = self.inner(ids)
            with memtune_runner.loss_in_parts():
                parts = [checkpoint(self.head, part, use_reentrant=False) for part in hidden.chunk(2)]
            return torch.cat(parts)

    report = watched(directory, lambda: train(2, model=Fusing()), settings_of("fp32-ddp-none-mb4x2"))
    assert (report.applied.checkpointed_blocks, report.applied.micro_steps) == (0, 2)


class Recomputed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.calls = nn.Linear(WIDTH, WIDTH), 0

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = checkpoint(self._count, given, use_reentrant=False)
        return found

    def _count(self, given: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        found: torch.Tensor = self.inner(given)
        return found


def take(model: nn.Module, create_graph: bool = False) -> list[torch.Tensor]:
    loss = model(tokens(4)).logsumexp(-1).mean()
    weights: Any = model.parameters()  # an iterator, which torch takes whatever its types say
    return list(torch.autograd.grad(loss, weights, None, None, create_graph))


def test_gradients_that_a_script_asks_for_and_sets_make_steps(directory: Path) -> None:
    def loop() -> None:
        model = nn.Sequential(model_of(), ckpt := Recomputed())
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(3):
            for _ in range(2):
                for parameter, gradient in zip(model.parameters(), take(model), strict=True):
                    parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
            optimizer.step()
            optimizer.zero_grad()
        assert ckpt.calls == 12, "each block again in the backward pass"

    report = watched(directory, loop, settings_of("fp32-ddp-none-mb4x2"))
    assert (report.ending, report.steps) == (Ending.SUCCEEDED, 3)
    assert report.applied is not None
    assert (report.applied.micro_steps, report.applied.samples_per_step) == (2, 8)
    assert (report.applied.gradient_dtype, report.applied.checkpointed_blocks) == ("float32", 1)


@pytest.mark.parametrize("create_graph", [True, False], ids=["penalty", "balance"])
def test_gradients_taken_on_the_way_to_a_backward_pass_are_no_micro_batch(create_graph: bool, directory: Path) -> None:
    """A gradient penalty passes through them; methods that balance several losses look at their size."""

    def loop() -> None:
        model = model_of()
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(3):
            norms = [each.norm() for each in take(model, create_graph)]
            (model(tokens(4)).logsumexp(-1).mean() + sum(norms)).backward()
            optimizer.step()
            optimizer.zero_grad()

    report = watched(directory, loop, settings_of("fp32-ddp-none-mb4x1"))
    assert report.steps == 3
    assert report.applied is not None
    assert (report.applied.micro_steps, report.applied.samples_per_step) == (1, 4)


def test_gradients_that_are_only_looked_at_between_two_optimizers_make_no_step(directory: Path) -> None:
    def loop() -> None:
        model = model_of()
        first, last = model[0], model[2]
        optimizers = [torch.optim.AdamW(layer.parameters()) for layer in (first, last)]
        for _ in range(3):
            loss = model(tokens(4)).logsumexp(-1).mean()
            loss.backward(retain_graph=True)
            optimizers[0].step()
            torch.autograd.grad(loss, tuple(last.parameters()), retain_graph=True)
            optimizers[1].step()

    report = watched(directory, loop, settings_of("fp32-ddp-none-mb4x1"))
    assert report.steps == 3
    assert report.applied is not None
    assert (report.applied.micro_steps, report.applied.samples_per_step) == (1, 4)


def test_gradients_asked_for_weight_by_weight_are_of_one_micro_batch(directory: Path) -> None:
    def loop() -> None:
        model = model_of()
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(3):
            for _ in range(2):
                loss = model(tokens(4)).logsumexp(-1).mean()
                for parameter in model.parameters():
                    (gradient,) = torch.autograd.grad(loss, parameter, retain_graph=True)
                    parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
            optimizer.step()
            optimizer.zero_grad()

    report = watched(directory, loop, settings_of("fp32-ddp-none-mb4x2"))
    assert report.steps == 3
    assert report.applied is not None
    assert (report.applied.micro_steps, report.applied.samples_per_step) == (2, 8)


def test_weights_of_no_module_may_be_trained_with_gradients_asked_for(directory: Path) -> None:
    def loop() -> None:
        weight = nn.Parameter(torch.ones(4))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for _ in range(3):
            (weight.grad,) = torch.autograd.grad((weight * weight).sum(), weight)
            optimizer.step()

    assert watched(directory, loop, settings_of("fp32-ddp-none-mb4x1")).steps == 3


@pytest.mark.parametrize("trains_before", [True, False])
def test_gradients_asked_for_in_an_evaluation_are_part_of_it(trains_before: bool, directory: Path) -> None:
    """As for the Fisher information of the weights."""

    def loop() -> None:
        model = model_of()
        optimizer = torch.optim.AdamW(model.parameters())
        if trains_before:
            train(1, model=model)
        model.eval()
        take(model)
        assert phases.current() is Phase.EVALUATION
        optimizer.step()
        train(1, model=model.train())

    assert watched(directory, loop, settings_of("fp32-ddp-none-mb4x2")).steps == 1 + trains_before


def test_a_teacher_that_is_evaluated_within_a_batch_leaves_it_one_to_learn_from(directory: Path) -> None:
    def loop() -> None:
        model, teacher = model_of(), model_of().eval()
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(3):
            given = tokens(4)
            output = model(given)
            with torch.no_grad():
                wanted = teacher(given)
            gradients = torch.autograd.grad((output - wanted).square().mean(), tuple(model.parameters()))
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.grad = gradient
            optimizer.step()

    assert watched(directory, loop, settings_of("fp32-ddp-none-mb4x1")).steps == 3


def test_gradients_of_other_tensors_than_weights_make_no_step(directory: Path) -> None:
    def loop() -> None:
        model = model_of()
        optimizer = torch.optim.AdamW(model.parameters())
        model(tokens(4)).mean().backward()
        for _ in range(2):
            optimizer.step()
            sample = torch.ones(4, WIDTH, requires_grad=True)
            torch.autograd.grad(model[1](sample).mean(), sample)

    assert watched(directory, loop, settings_of("fp32-ddp-none-mb4x1")).steps == 1


def test_several_optimizers_and_parameter_groups_make_one_step(directory: Path) -> None:
    def two_groups() -> None:
        model = model_of()
        train(3, model=model, accumulation=4, optimizers=2)
        groups = [{"params": list(layer.parameters())} for layer in model]
        optimizer = torch.optim.SGD(groups, lr=1e-3)
        model(tokens(4)).sum().backward()
        optimizer.step()

    report = watched(directory, two_groups, settings_of("fp32-ddp-none-mb4x4"))
    assert (report.steps, report.applied.micro_steps) == (4, 4)


@pytest.mark.parametrize("fused", [False, True])
def test_steps_that_a_loss_scaler_skips_are_reported_apart(directory: Path, fused: bool) -> None:
    def loop() -> None:
        model = model_of()
        optimizer = torch.optim.AdamW(model.parameters(), fused=fused)
        scaler = torch.amp.GradScaler("cpu")
        for number in range(4):
            loss = model(tokens(4)).sum() * (float("inf") if number == 1 else 1.0)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

    report = watched(directory, loop, settings_of("fp32-ddp-none-mb4x1"))
    assert (report.steps, report.skipped_steps) == (3, 1)


@pytest.fixture
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ignore models that other tests left in this process."""
    alive = components._alive
    others = alive()  # keeps them alive, so that no new object takes their place
    known = {id(each) for group in others for each in group}
    monkeypatch.setattr(
        components, "_alive", lambda: tuple([each for each in group if id(each) not in known] for group in alive())
    )


@pytest.mark.usefixtures("_alone")
def test_an_out_of_memory_is_reported_with_its_phase_and_its_components(directory: Path) -> None:
    def loop() -> None:
        model = nn.Sequential(nn.Embedding(WIDTH, 512), *(nn.Linear(512, 512) for _ in range(8)))
        train(2, model=model, rows=4)
        train(1, model=model, rows=4096)

    settings = replace(settings_of("fp32-ddp-none-mb4x2"), report_path=directory / "report.json")
    with pytest.raises(torch.OutOfMemoryError), watching(settings, RANK):
        loop()
    report = read_report(report_path(directory, RANK).read_bytes())
    page = (directory / "memory-rank-0.txt").read_text()
    assert page.startswith("by component\n")
    assert re.search(r"^ +\d+\.\d\d MiB  weights$", page, re.MULTILINE), page
    assert (report.ending, report.exit_code, report.phase) == (Ending.DEVICE_OOM, 85, Phase.FORWARD)
    assert report.message.startswith("OutOfMemoryError: CUDA out of memory")
    assert report.memory.failed_request_bytes == 4096 * 8 * 512 * 4
    sizes = {each.name: each.size_bytes for each in report.largest}
    weights_bytes = 4 * (WIDTH * 512 + 8 * (512 * 512 + 512))
    assert sizes["weights"] == weights_bytes
    assert sizes["activations and others"] > 0
    assert sum(sizes.values()) <= 64 * MIB


def test_any_other_exception_is_reported_and_passed_on(directory: Path) -> None:
    def loop() -> None:
        train(1)
        raise ValueError("the data is gone")

    with pytest.raises(ValueError, match="the data is gone"), watching(settings_of("fp32-ddp-none-mb4x2"), RANK):
        loop()
    report = read_report(report_path(directory, RANK).read_bytes())
    assert (report.ending, report.exit_code, report.steps) == (Ending.ERROR, 1, 1)
    assert report.message == "ValueError: the data is gone"


@pytest.mark.parametrize(
    ("free_bytes", "ending"), [(100 * MIB, Ending.DEVICE_OOM), (4000 * MIB, Ending.ERROR), (None, Ending.ERROR)]
)
def test_a_library_without_a_handle_ran_out_of_memory_only_where_the_device_is_full(
    directory: Path, monkeypatch: pytest.MonkeyPatch, free_bytes: int | None, ending: Ending
) -> None:
    def loop() -> None:
        train(1)
        raise RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`")

    monkeypatch.setattr(VirtualStatistics, "free_bytes", lambda _: free_bytes)
    with pytest.raises(RuntimeError), watching(settings_of("fp32-ddp-none-mb4x2"), RANK):
        loop()
    assert read_report(report_path(directory, RANK).read_bytes()).ending is ending


@pytest.mark.parametrize("code", [None, 0])
def test_a_script_may_exit_by_itself(directory: Path, code: int | None) -> None:
    def loop() -> None:
        train(1)
        sys.exit(code)

    assert watched(directory, loop, settings_of("fp32-ddp-none-mb4x2")).ending is Ending.SUCCEEDED


def test_a_script_that_never_trains_fails(directory: Path) -> None:
    with pytest.raises(SystemExit) as ended, watching(settings_of("fp32-ddp-none-mb4x2"), RANK):
        model_of()(tokens(4))
    report = read_report(report_path(directory, RANK).read_bytes())
    assert (ended.value.code, report.ending, report.exit_code) == (88, Ending.BAD_INPUT, 88)
    assert "without a single optimizer step" in report.message


def test_updating_weights_without_a_torch_optimizer_is_reported(directory: Path) -> None:
    def loop() -> None:
        for _ in range(3):
            model_of()(tokens(4)).mean().backward()

    with pytest.raises(SystemExit):
        watched(directory, loop, settings_of("fp32-ddp-none-mb4x2"))
    message = read_report(report_path(directory, RANK).read_bytes()).message
    assert message.startswith("the script ended after 3 backward passes and no step of a torch optimizer")


class WithoutSuper(torch.optim.Optimizer):
    """A subclass whose steps torch's hooks do not see."""

    def __init__(self, weights: Iterator[nn.Parameter]) -> None:
        self.param_groups = [{"params": list(weights)}]

    def step(self, _: Any = None) -> Any:
        for each in self.param_groups[0]["params"]:
            each.data -= 1e-3 * each.grad


def step_by_hand(model: nn.Module) -> None:
    loss_of(model).backward()
    for each in model.parameters():
        assert each.grad is not None
        each.data -= 1e-3 * each.grad  # which leaves the version as it is


def step_without_super(model: nn.Module) -> None:
    loss_of(model).backward()
    WithoutSuper(model.parameters()).step()


def step_by_requested_gradients(model: nn.Module) -> None:
    weights = list(model.parameters())
    for each, gradient in zip(weights, torch.autograd.grad(loss_of(model), weights), strict=True):
        each.data -= 1e-3 * gradient


def loss_of(model: nn.Module) -> torch.Tensor:
    loss: torch.Tensor = model(tokens(4)).logsumexp(-1).mean()
    return loss


@pytest.mark.parametrize("kind", [RunKind.TRAIN, RunKind.PROBE])
@pytest.mark.parametrize("step", [step_by_hand, step_without_super, step_by_requested_gradients])
def test_a_training_whose_steps_nobody_sees_ends_long_before_its_end(
    directory: Path, kind: RunKind, step: Callable[[nn.Module], None]
) -> None:
    steps = 0

    def loop() -> None:
        nonlocal steps
        model = model_of()
        for _ in range(1000):
            step(model)
            steps += 1

    with pytest.raises(BadInputError, match="264 backward passes and no step of a torch optimizer"):
        watched(directory, loop, settings_of("fp32-ddp-none-mb4x2", kind))
    assert steps == 264
    assert read_report(report_path(directory, RANK).read_bytes()).ending is Ending.BAD_INPUT


def test_a_process_that_need_not_train_may_update_weights_as_it_likes(directory: Path) -> None:
    model = model_of()
    with watching(settings_of("fp32-ddp-none-mb4x2"), RANK, must_train=False):
        for _ in range(300):
            step_by_hand(model)
    assert not report_path(directory, RANK).exists()


def estimate_importance(model: nn.Module) -> None:
    model.zero_grad()
    loss_of(model).backward()


def request_gradients(model: nn.Module) -> None:
    torch.autograd.grad(loss_of(model), list(model.parameters()))


def attack_inputs(model: nn.Module) -> None:
    *_, head = model.requires_grad_(False).children()
    head(torch.randn(4, 8, WIDTH, requires_grad=True)).sum().backward()
    model.requires_grad_(True)


@pytest.mark.parametrize("before", [estimate_importance, request_gradients, attack_inputs])
def test_a_script_may_make_many_backward_passes_before_it_trains(
    directory: Path, before: Callable[[nn.Module], None]
) -> None:
    def loop() -> None:
        model = model_of()
        for _ in range(300):
            before(model)
        model.zero_grad()
        train(1, model=model)

    assert watched(directory, loop, settings_of("fp32-ddp-none-mb4x2")).steps == 1


def test_weights_that_are_no_numbers_do_not_change(directory: Path) -> None:
    def loop() -> None:
        model = model_of()
        torch.nn.init.constant_(model[1].weight, float("nan"))  # type: ignore[arg-type]  # a layer's weight
        for _ in range(300):
            estimate_importance(model)
        train(1, model=model)

    assert watched(directory, loop, settings_of("fp32-ddp-none-mb4x2")).steps == 1


def test_accumulating_far_more_than_planned_is_reported(directory: Path) -> None:
    with pytest.raises(PlanNotAppliedError, match="the script's batch is 1200"):
        watched(directory, lambda: train(4, accumulation=300), settings_of("fp32-ddp-none-mb4x2"))


@pytest.mark.parametrize("is_failure", [False, True])
def test_the_last_line_of_a_failed_script_is_no_warning_of_its_saves(
    directory: Path, is_failure: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Store, "last_completed", None)  # another test of this process may have saved one
    settings = replace(settings_of("fp32-ddp-none-mb4x2"), checkpoint_path=directory / "checkpoints")

    def loop() -> None:
        model = model_of()
        train(1, model=model)
        torch.save(model.state_dict(), directory / "model.pt")
        train(1, model=model)
        sys.exit(is_failure)

    with contextlib.suppress(SystemExit):
        watched(directory, loop, settings)
    assert ("the script has saved" in capsys.readouterr().err) is not is_failure


def test_a_process_that_need_not_train_leaves_no_report_unless_it_does(directory: Path) -> None:
    with watching(settings_of("fp32-ddp-none-mb4x2"), RANK, must_train=False):
        model_of()
    assert not report_path(directory, RANK).exists()
    with watching(settings_of("fp32-ddp-none-mb4x2"), RANK, must_train=False):
        train(1)
    assert read_report(report_path(directory, RANK).read_bytes()).steps == 1


def test_a_probe_ends_although_the_script_catches_exceptions(directory: Path) -> None:
    def loop() -> None:
        for _ in range(100):
            with contextlib.suppress(Exception):
                train(1)

    report = watched(directory, loop, settings_of("fp32-ddp-none-mb4x8", RunKind.PROBE))
    assert (report.ending, report.exit_code, report.steps) == (Ending.SUCCEEDED, 0, 2)
    assert (report.length_covered, report.evaluation_covered, report.save_covered) == (True, False, False)
    assert mismatch(Plan.parse("fp32-ddp-none-mb4x8"), report.applied, world=1, is_probe=True) == ""


def test_a_probe_covers_evaluation_and_saving(directory: Path) -> None:
    evaluated: list[torch.Tensor] = []

    def loop() -> None:
        model = model_of()
        train(2, model=model)
        torch.save(model.state_dict(), directory / "model.pt")
        model.eval()
        with torch.no_grad():
            evaluated.extend(model(tokens(4)) for _ in range(5))
        raise AssertionError("the probe should have ended at the second batch of the evaluation")

    report = watched(directory, loop, settings_of("fp32-ddp-none-mb4x2", RunKind.PROBE))
    assert (report.evaluation_covered, report.save_covered) == (True, True)
    assert len(evaluated) == 1, "the first batch went through the whole model"


@pytest.mark.parametrize("generates_first", [False, True])
def test_samples_are_where_the_batches_that_train_have_them(directory: Path, generates_first: bool) -> None:
    def loop() -> None:
        model = model_of()
        for trains in (not generates_first, generates_first, True):
            with contextlib.nullcontext() if trains else torch.no_grad():
                if trains:
                    train(1, rows=1, accumulation=1, model=model)
                else:
                    model(tokens(1).T)  # as many sequences as training ones have tokens, of a token each

    report = watched(directory, loop, settings_of("fp32-ddp-none-mb1x1"))
    assert report.applied.micro_batch == 1


@pytest.mark.parametrize(("rows", "is_told"), [(32768, True), (4, False)])
def test_a_probe_whose_evaluation_takes_the_most_says_so(directory: Path, rows: int, is_told: bool) -> None:
    def loop() -> None:
        model = model_of()
        train(2, model=model)
        model.eval()
        with torch.no_grad():
            for _ in range(2):
                model(tokens(rows)).sum()

    report = watched(directory, loop, settings_of("fp32-ddp-none-mb4x2", RunKind.PROBE))
    assert report.ending is Ending.SUCCEEDED
    expected = "the peak is that of an evaluation in batches of 32768, where the plan trains in batches of 4"
    assert report.warnings.startswith(expected) is is_told, report.warnings


def test_a_background_save_is_not_attributed_to_training_steps(directory: Path) -> None:
    class Slow(io.BytesIO):
        def write(self, data: Any) -> int:
            saves.set()
            seen.wait(60)
            return super().write(data)

    saves, seen, meanwhile = Event(), Event(), []

    def loop() -> None:
        train(2)
        background = Thread(target=torch.save, args=(torch.ones(4), Slow()))
        background.start()
        assert saves.wait(60)
        meanwhile.append(phases.current())
        seen.set()
        background.join()
        meanwhile.append(phases.current())
        train(1)

    report = watched(directory, loop, settings_of("fp32-ddp-none-mb4x2", RunKind.PROBE, steps=3))
    assert (meanwhile, report.save_covered) == ([Phase.OPTIMIZER_STEP] * 2, True)


def test_safetensors_save_as_well(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Phase] = []

    def saving(*_: object, **__: object) -> None:
        seen.append(phases.current())

    monkeypatch.delitem(sys.modules, "safetensors.torch", raising=False)

    def loop() -> None:
        safetensors = import_module("safetensors.torch")
        monkeypatch.setattr(safetensors, "serialize_file", saving)
        train(2)
        safetensors.save_file(model_of().state_dict(), directory / "model.safetensors")

    report = watched(directory, loop, settings_of("fp32-ddp-none-mb4x2", RunKind.PROBE, steps=3))
    assert (seen, report.save_covered) == ([Phase.SAVE], True)


def test_shorter_sequences_do_not_cover_the_length(directory: Path) -> None:
    settings = settings_of("fp32-ddp-none-mb8x2", RunKind.PROBE)
    assert watched(directory, lambda: train(9), settings).length_covered is False


def test_compiled_code_is_watched_from_outside(directory: Path) -> None:
    model = Checkpointed()
    model.compile(backend="eager")
    report = watched(directory, lambda: train(2, model=model), settings_of("fp32-ddp-full-mb4x2"))
    assert (report.applied.micro_batch, report.applied.micro_steps, report.steps) == (4, 2, 2)
    assert report.applied.checkpointed_blocks is None, "no hook runs in compiled code, so nothing is said about it"


@pytest.mark.parametrize("end", ["sys.exit(3)", "raise ValueError('child')", "pass"])
def test_the_end_of_a_forked_child_is_none_of_its_rank(directory: Path, end: str) -> None:
    ended: list[int] = []

    def fork() -> None:
        if child := os.fork():
            ended.append(os.waitpid(child, 0)[1])
            return
        exec(end)

    parent = os.getpid()
    try:
        with watching(settings_of("fp32-ddp-none-mb4x2"), RANK):
            fork()
            if os.getpid() == parent:
                assert not report_path(directory, RANK).exists()
                train(1)
    finally:
        if os.getpid() != parent:
            os._exit(7)
    assert os.waitstatus_to_exitcode(ended[0]) == 7
    assert read_report(report_path(directory, RANK).read_bytes()).steps == 1


def test_samples_generated_within_a_librarys_step_are_no_batch_of_it(directory: Path) -> None:
    def loop() -> None:
        model = nn.Linear(WIDTH, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(2):
            for micro_step in range(2):
                with library_step.during(1):
                    if micro_step == 0:  # as in GRPO: the answers of the whole step at once
                        with torch.no_grad():
                            model(torch.ones(16, WIDTH))
                        assert phases.current() is Phase.FORWARD, step
                    model(torch.ones(4, WIDTH)).sum().backward()
            optimizer.step()

    applied = watched(directory, loop, settings_of("fp32-ddp-none-mb4x2")).applied
    assert (applied.micro_batch, applied.samples_per_step, applied.evaluation_batch) == (4, 8, None)


def resuming(directory: Path, integration: str = "env") -> Settings:
    checkpoint = directory / "step-3"
    checkpoint.mkdir()
    torch.save({"weight": torch.ones(2)}, checkpoint / "state.pt")
    save_file({"weight": torch.ones(2)}, checkpoint / "model.safetensors")
    (checkpoint / "state.json").write_text("{}")
    settings = settings_of("fp32-ddp-none-mb4x2")
    return replace(settings, integration=integration, resume_from=checkpoint, resume_samples=24)


@pytest.mark.parametrize(
    ("integration", "remedy"),
    [
        ("env", "load it from $MEMTUNE_RESUME_FROM"),
        ("accelerate", "call accelerator.load_state(path)"),
        ("sdk", "call engine.load"),
    ],
)
def test_a_training_that_begins_anew_instead_of_going_on_is_ended(
    directory: Path, integration: str, remedy: str
) -> None:
    settings = resuming(directory, integration)
    assert settings.resume_from is not None

    def loop() -> None:
        (settings.resume_from or Path()).joinpath("state.json").read_text()
        train(2)

    with pytest.raises(BadInputError, match="trains without having loaded the checkpoint of 24 samples: "):
        watched(directory, loop, settings)
    report = read_report(report_path(directory, RANK).read_bytes())
    assert (report.ending, report.steps, report.resumed_samples) == (Ending.BAD_INPUT, 0, 0)
    assert report.message.endswith(f"; it is {settings.resume_from}")
    assert remedy in report.message
    # The status has room for the whole remedy; the directory behind it may be cut.
    assert report.message.index("; it is ") < SENTENCE


@pytest.mark.parametrize("load", [lambda path: torch.load(path / "state.pt"), lambda path: load_weights(path)])
def test_a_training_that_loaded_its_checkpoint_goes_on(directory: Path, load: Callable[[Path], object]) -> None:
    settings = resuming(directory)

    def loop() -> None:
        assert settings.resume_from is not None
        load(settings.resume_from)
        train(2)

    report = watched(directory, loop, settings)
    assert (report.ending, report.steps, report.resumed_samples) == (Ending.SUCCEEDED, 2, 24)


def test_a_script_with_nothing_left_to_train_must_have_loaded_its_checkpoint(directory: Path) -> None:
    settings = resuming(directory)
    assert settings.resume_from is not None
    state = settings.resume_from / "state.pt"
    report = watched(directory, lambda: torch.load(state), settings)
    assert (report.ending, report.steps, report.resumed_samples) == (Ending.SUCCEEDED, 0, 24)
    with pytest.raises(SystemExit):
        watched(directory, lambda: None, settings)
    report = read_report(report_path(directory, RANK).read_bytes())
    assert (report.ending, report.resumed_samples) == (Ending.BAD_INPUT, 0)
    assert (
        "ended without an optimizer step and without having loaded the checkpoint of 24 samples: load it from"
        in report.message
    )


@pytest.mark.parametrize(
    ("name", "size", "is_loaded"),
    [
        ("README.md", 9000, False),
        ("chat_template.jinja", 9000, False),
        ("tokenizer.model", 9000, False),
        ("latest", 20, False),
        ("weights", 9000, True),
        ("optimizer.npz", 9000, True),
        (".metadata", 20, True),
    ],
)
def test_only_files_that_may_hold_tensors_count_as_loaded_checkpoints(
    directory: Path, name: str, size: int, is_loaded: bool
) -> None:
    settings = resuming(directory)
    assert settings.resume_from is not None
    load = CheckpointLoad(settings, settings.resume_from)
    path = settings.resume_from / name
    path.write_bytes(bytes(size))
    load.opened(path)
    assert load.is_done == is_loaded


def load_weights(directory: Path) -> None:
    import safetensors  # imported late, as in a script: the hook runs at import

    with safetensors.safe_open(directory / "model.safetensors", framework="pt") as file:
        file.get_tensor("weight")


def test_loading_weights_alone_does_not_resume_an_accelerate_checkpoint(directory: Path) -> None:
    settings = resuming(directory, "accelerate")

    def loop() -> None:
        assert settings.resume_from is not None
        load_weights(settings.resume_from)
        train(2)

    with pytest.raises(BadInputError):
        watched(directory, loop, settings)


def test_samples_of_a_checkpoint_loaded_by_rank_0_are_shared_among_ranks() -> None:
    batch_counts, schedule = SimpleNamespace(trained_samples=20), SimpleNamespace(made_again="")
    watch: Any = SimpleNamespace(batch_counts=batch_counts, schedule_length=schedule)
    load: Any = SimpleNamespace(samples=81, is_done=False)
    told = [_samples(watch, Rank(rank, rank, 4, 4, 0), load, TrainingLength()) for rank in range(4)]
    assert [each["trained_samples"] for each in told] == [41, 40, 40, 40]


def test_passes_on_the_device_meta_are_none_of_the_training(directory: Path) -> None:
    def loop() -> None:
        model_of().to("meta")(tokens(64).to("meta")).sum().backward()  # to count operations, as LitGPT does
        train(steps=3)

    report = watched(directory, loop, settings_of("fp32-ddp-none-mb4x2"))
    assert (report.ending, report.steps, report.trained_samples) == (Ending.SUCCEEDED, 3, 24)
    assert (report.applied.micro_batch, report.applied.micro_steps) == (4, 2)


def test_a_model_on_the_device_meta_has_a_dtype() -> None:
    assert compute_dtype(torch.nn.Linear(2, 2, device="meta")) == "float32"
