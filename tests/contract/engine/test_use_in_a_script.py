"""The engine in a script: errors for wrong use, batches of any shape, probes."""

from __future__ import annotations

import subprocess
import sys
from collections import UserDict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_ranks import LENGTH, decoder, global_batches, loss_of, settings_of
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict

import memtune_runner
from memtune.plans.plan import Plan
from memtune.wire.report import Device, Phase
from memtune.wire.run import RunKind
from memtune_runner.engine import Engine, PlanError, batch_rows, torch_backend
from memtune_runner.engine.precision import prepare
from memtune_runner.rank import phases
from memtune_runner.rank.settings import Settings, SettingsError

PLAN = Plan.parse("fp32-ddp-none-mb2x4")


pytestmark = pytest.mark.usefixtures("one_thread")


def engine(settings: Settings | None = None, **options: Any) -> Engine:
    return memtune_runner.initialize(decoder(), loss=loss_of, settings=settings or settings_of(PLAN, 1), **options)


@pytest.fixture
def whole() -> dict[str, torch.Tensor]:
    return next(global_batches())


def test_three_lines_train(whole: dict[str, torch.Tensor]) -> None:
    trained = engine(lr=1e-2)
    losses = []
    for _ in range(3):
        for micro in trained.micro_batches(whole):
            trained.backward(trained(micro))
        losses.append(float(trained.step().loss))
    assert losses == sorted(losses, reverse=True)
    assert (trained.steps, trained.samples) == (3, 24)


def test_an_optimizer_of_the_scripts_own_replaces_the_plans() -> None:
    own = engine(optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.5))
    assert isinstance(own.optimizer, torch.optim.SGD)
    eight = settings_of(replace(PLAN, optimizer=type(PLAN.optimizer)("adamw-8bit")), 1)
    with pytest.raises(
        PlanError, match=r"leave out optimizer=, or name 8-bit AdamW in none of .*tuning\.space\.optimizer"
    ):
        engine(eight, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.5))


def test_a_plan_that_fuses_the_loss_gets_the_scripts_fused_one(whole: dict[str, torch.Tensor]) -> None:
    fusing = settings_of(replace(PLAN, fused_loss=True), 1)
    with pytest.raises(PlanError, match=r"give fused_loss=, or take true out of tuning\.space\.fusedLoss"):
        engine(fusing)
    used = engine(fusing, fused_loss=lambda model, micro: 2 * loss_of(model, micro))
    micro = next(used.micro_batches(whole))
    torch.testing.assert_close(used(micro), 2 * loss_of(used.model, micro))


def test_wrong_use_is_reported(whole: dict[str, torch.Tensor]) -> None:
    used = engine()
    with pytest.raises(RuntimeError, match=r"belongs in a loop over engine\.micro_batches"):
        used.backward(torch.zeros(()))
    with pytest.raises(RuntimeError, match="belongs after the loop"):
        used.step()
    micros = used.micro_batches(whole)
    used.backward(used(next(micros)))
    with pytest.raises(RuntimeError, match="which must end"):
        used.step()
    next(micros)
    with pytest.raises(RuntimeError, match="once for every micro-batch"):
        next(micros)
    empty = {"tokens": whole["tokens"], "labels": torch.full_like(whole["labels"], -100)}
    with pytest.raises(ValueError, match="no tokens to learn from"):
        next(used.micro_batches(empty))


def test_a_probe_is_short_and_as_long_as_sequences_get(whole: dict[str, torch.Tensor]) -> None:
    settings = replace(settings_of(PLAN, 1), kind=RunKind.PROBE, sequence_length=LENGTH + 5)
    micros = []
    probe = engine(settings)
    for micro in probe.micro_batches(whole):
        micros.append(micro)
        probe.backward(probe(micro))
    assert [tuple(each["tokens"].shape) for each in micros] == [(2, LENGTH + 5)] * 2


def test_gathering_weights_is_part_of_the_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Phase] = []

    def gathered(*of: Any) -> Any:
        seen.append(phases.current())
        return get_state_dict(*of)

    monkeypatch.setattr(torch_backend, "get_state_dict", gathered)
    phases.reset()
    engine().save(tmp_path / "saved")
    assert seen == [Phase.SAVE]
    assert (phases.current(), phases.times_ended(Phase.SAVE) > 0) == (Phase.INIT, True)


def test_a_scheduler_that_computes_with_numpy_goes_on_from_a_checkpoint(
    whole: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    def cosine(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 * (1 + np.cos(step / 10)))

    saved, resumed = engine(scheduler=cosine), engine(scheduler=cosine)
    for micro in saved.micro_batches(whole):
        saved.backward(saved(micro))
    saved.step()
    saved.save(tmp_path / "saved")
    resumed.load(tmp_path / "saved")
    assert (resumed.steps, resumed.optimizer.param_groups[0]["lr"]) == (1, saved.optimizer.param_groups[0]["lr"])


def test_a_world_of_another_size_is_refused() -> None:
    with pytest.raises(SettingsError, match="1 ranks have come together, the run has 2"):
        engine(settings_of(Plan.parse("fp32-ddp-none-mb2x2"), 2))


def test_a_missing_gpu_is_reported() -> None:
    with pytest.raises(SettingsError, match="local rank 0 has no GPU: torch sees 0"):
        engine(replace(settings_of(PLAN, 1), device=Device.CUDA))


def test_a_hugging_face_model_needs_no_loss_function(whole: dict[str, torch.Tensor]) -> None:
    class Output:
        def __init__(self, loss: torch.Tensor) -> None:
            self.loss = loss

    class Model(nn.Module):
        loss_type = "ForCausalLM"

        def __init__(self) -> None:
            super().__init__()
            self.inner = decoder()

        def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> Output:
            shifted = {"tokens": tokens[:, :-1], "labels": labels[:, 1:]}
            return Output(loss_of(self.inner, shifted))

    expected = loss_of(decoder(), {"tokens": whole["tokens"][:, :-1], "labels": whole["labels"][:, 1:]})
    trained = memtune_runner.initialize(Model(), settings=settings_of(PLAN, 1))
    for micro in trained.micro_batches(whole):
        trained.backward(trained(micro))
    assert float(trained.step().loss) == pytest.approx(expected.item(), rel=1e-5)


def test_batches_may_be_nested_and_rows_must_agree() -> None:
    nested = {"x": (torch.zeros(4, 3), [torch.ones(4)]), "name": "kept", "scale": torch.tensor(2.0)}
    assert batch_rows.rows_of(nested) == 4
    part = batch_rows.rows_between(nested, 1, 3)
    assert (part["x"][0].shape, part["x"][1][0].shape, part["name"], float(part["scale"])) == ((2, 3), (2,), "kept", 2)
    with pytest.raises(ValueError, match=r"these have \[3, 4\] rows"):
        batch_rows.rows_of([torch.zeros(4), torch.zeros(3)])
    with pytest.raises(ValueError, match="this one holds none"):
        batch_rows.rows_of({"name": "nothing"})


def test_a_batch_may_be_a_mapping_of_any_class() -> None:
    tokenized = UserDict({"input_ids": torch.arange(12).view(4, 3), "labels": torch.tensor([[1, 2, -100]] * 4)})
    assert batch_rows.rows_of(tokenized) == 4
    part = batch_rows.to_device(batch_rows.rows_between(tokenized, 1, 3), torch.device("cpu"))
    assert isinstance(part, UserDict)
    assert (part["input_ids"].tolist(), len(tokenized["input_ids"])) == ([[3, 4, 5], [6, 7, 8]], 4)
    assert batch_rows.count_tokens(part, shifts_labels=True) == 2


@pytest.mark.parametrize(
    ("one", "shifts_labels", "count"),
    [
        ({"labels": torch.tensor([[1, -100, 3], [-100, 5, 6]])}, False, 4),
        ({"labels": torch.tensor([[1, -100, 3], [-100, 5, 6]])}, True, 3),
        ({"x": torch.zeros(4, 2), "labels": torch.zeros(4)}, False, 4),
        (torch.zeros(4, 3, dtype=torch.long), False, 12),
        (torch.zeros(4, 3), False, 4),
    ],
)
def test_a_mean_loss_counts_tokens(one: Any, shifts_labels: bool, count: int) -> None:
    assert batch_rows.count_tokens(one, shifts_labels) == count


def test_a_rank_without_rows_gets_one_of_ones() -> None:
    filler = batch_rows.filler_row({"tokens": torch.zeros(0, 5, dtype=torch.long), "mask": torch.zeros(0, 5)})
    assert torch.equal(filler["tokens"], torch.ones(1, 5, dtype=torch.long))
    assert torch.equal(filler["mask"], torch.ones(1, 5))


def test_the_package_needs_no_torch_until_it_is_used() -> None:
    code = "import sys, memtune_runner; assert 'torch' not in sys.modules"
    paths = [str(Path(each).resolve()) for each in sys.path]
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(paths)}, timeout=120)


@pytest.mark.parametrize(("family", "attention"), [("gemma2", "eager"), ("llama", "sdpa")])
def test_a_model_that_has_its_own_attention_alone_keeps_it(family: str, attention: str) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "head_dim": 8}
    config = AutoConfig.for_model(family, **sizes, num_key_value_heads=2, intermediate_size=48)
    automatic: Any = AutoModelForCausalLM  # untyped in transformers
    model = automatic.from_config(config)
    prepare(model, PLAN, torch.device("cpu"))
    assert model.config._attn_implementation == attention
