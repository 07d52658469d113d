"""Traces of small models: their events, and the messages about what cannot be traced."""

from __future__ import annotations

import gc
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from memtune.memory.replay import Replayer, live_peak
from memtune.plans.plan import Plan
from memtune.wire import trace as events
from memtune.wire.trace import dumps, loads
from memtune_runner.tracing import TracingError, trace
from memtune_runner.tracing.factory import build

ROWS, LENGTH = 2, 4
PROGRAMS = Path(__file__).parents[2] / "support" / "programs"


@pytest.fixture(autouse=True)
def _factories_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(PROGRAMS))
    yield
    sys.modules.pop("factories", None)


def test_a_factory_is_traced_in_every_way_of_computing() -> None:
    traced = trace("factories:plain", ROWS, LENGTH)
    assert list(traced.programs) == ["half", "autocast", "full"]
    assert traced.rows == [3]
    assert [each.name for each in traced.parameters][:2] == ["blocks.0.0.weight", "blocks.0.0.bias"]
    assert [each.block for each in traced.parameters] == [0, 0, 1, 1, 2, 2]
    assert sum(traced.program("full").weights) == 4 * traced.total == 2 * sum(traced.program("half").weights)
    assert loads(dumps(traced)) == traced


def test_objects_frozen_by_the_caller_stay_frozen() -> None:
    gc.freeze()
    trace("factories:plain", ROWS, LENGTH, ["full"])
    assert gc.get_freeze_count()


def test_ranges_for_a_profiler_change_nothing() -> None:
    """A CPU build of torch rejects them."""
    assert trace("factories:profiled", ROWS, LENGTH).programs == trace("factories:plain", ROWS, LENGTH).programs
    with pytest.raises(RuntimeError, match="NVTX"):
        torch.cuda.nvtx.mark("after the trace")


def test_the_plan_replaces_a_factorys_own_checkpointing() -> None:
    """As the runner does: predictions were 36% low if the factory enabled it."""
    own, plain = (
        trace("factories:checkpointing_itself", ROWS, LENGTH, ["full"], arguments={"enabled": enabled})
        for enabled in (True, False)
    )
    assert own == plain


def test_numbers_that_go_in_are_cast_with_the_weights() -> None:
    program = trace("factories:plain", ROWS, LENGTH, ["half"]).program("half")
    batch, cast = program.sizes(1)[:2]
    assert batch == LENGTH * 32 * 4
    assert cast == LENGTH * 32 * 2


def test_every_save_is_released_and_every_weight_has_its_gradient() -> None:
    program = trace("factories:plain", ROWS, LENGTH, ["full"]).program("full")
    counts = {code: program.codes.count(code) for code in (events.SAVE, events.RELEASE, events.ALLOC, events.DROP)}
    assert counts[events.SAVE] == counts[events.RELEASE] > 0
    assert counts[events.ALLOC] == counts[events.DROP] > 0
    assert sorted(program.gradients) == list(range(6))
    assert program.codes.count(events.ENTER) == program.codes.count(events.LEAVE) == 3


def test_a_loss_around_the_model_comes_after_its_call_and_before_its_backward_pass() -> None:
    codes = trace("factories:with_loss", ROWS, LENGTH, ["full"]).program("full").codes
    marks = [codes.index(mark) for mark in (events.CALL, events.RETURN, events.BACKWARD, events.REACHED)]
    assert marks == sorted(marks)
    _, returned, began, reached = marks
    # It saves a tensor, which autograd requests before the model's own backward pass begins.
    assert events.SAVE in codes[returned:began]
    assert events.UNPACK in codes[began:reached]


def test_two_sizes_give_every_size() -> None:
    few, many = (trace("factories:plain", rows, LENGTH, ["full"]).program("full") for rows in (2, 7))
    assert few.codes == many.codes
    assert few.sizes(100) == many.sizes(100)


def test_a_batch_and_a_loss_of_the_users_own() -> None:
    plan = Plan.parse("fp32-ddp-none-mb2x1")
    assert live_peak(Replayer(trace("factories:with_loss", ROWS, LENGTH, ["full"])).tape(plan)) > 0


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        ("factories", "write it as module:function"),
        ("factories:nothing", "has no function nothing"),
        (
            "no_such_module:build",
            "there is no module no_such_module; let it be in the working directory",
        ),
        ("factories:raising", "raised RuntimeError: no such checkpoint"),
        ("factories:needing_a_gpu", "there is no GPU where a model is traced"),
        ("factories:moving", "so let the model make its tensors where what goes into it is"),
        ("factories:not_a_model", "returned str; it must return a model"),
        ("factories:alone", "what goes into it is unknown"),
        ("factories:without_loss", "Linear gives no loss"),
        ("factories:loss_of_no_number", "returned a loss that gives a tensor of shape (2,); loss(model, batch) must"),
        ("factories:no_loss", "returned int as its loss; loss(model, batch) must return one number"),
        ("factories:frozen", "the loss of Layers has no gradient"),
        ("factories:without_tensors", "returned a batch without tensors (str); return tensors"),
        ("factories:sized", "cannot be called: missing a required argument: 'blocks'; it gets micro_batch and"),
        ("factories:empty", "returned tuple; it must return a model"),
        ("factories:at_odds", "do not agree on a first dimension"),
        (
            "factories:sparse",
            "stopped in words: the gradient of words.weight is sparse, so",
        ),
        ("factories:row_by_row", "does other things with 3 rows than with 2"),
    ],
)
def test_a_model_that_cannot_be_traced_is_reported_in_one_sentence(factory: str, words: str) -> None:
    with pytest.raises(TracingError) as told:
        trace(factory, ROWS, LENGTH, ["full"])
    assert words in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("factory", "pattern"),
    [
        ("data_dependent", r"Choosing, operator aten\.index\.Tensor, in .*factories\.py, line \d+: the next operation"),
        (
            "custom_operator",
            r"Custom, operator memtune_test\.twice\.default, in .*factories\.py, line \d+: the operator",
        ),
    ],
)
def test_an_unsupported_operator_is_reported_with_module_and_line(factory: str, pattern: str) -> None:
    with pytest.raises(TracingError, match=rf"tracing stopped in {pattern}"):
        trace(f"factories:{factory}", ROWS, LENGTH, ["full"])


def test_a_constructor_may_read_small_numbers_of_its_own() -> None:
    def make() -> nn.Module:
        rates = torch.linspace(0, 0.5, 4)
        rates[1:] += 1
        return nn.Sequential(*[nn.Linear(8, 8 if rate.item() < 1 else 16) for rate in rates[:1]])

    def build_it() -> tuple[nn.Module, torch.Tensor]:
        layer = make()
        nn.init.trunc_normal_(layer.get_parameter("0.weight"))
        return layer, torch.zeros(2, 8)

    with FakeTensorMode(allow_non_fake_inputs=True):
        subject = build("inner:build_it", build_it, 2, 8)
    assert subject.model.get_parameter("0.weight").shape == (8, 8)


def test_a_constructor_cannot_read_weights() -> None:
    def build_it() -> tuple[nn.Module, torch.Tensor]:
        layer = nn.Linear(8, 8)
        return nn.Linear(8, 8 if layer.weight.sum().item() > 0 else 16), torch.zeros(2, 8)

    with FakeTensorMode(allow_non_fake_inputs=True), pytest.raises(TracingError) as told:
        build("inner:build_it", build_it, 2, 8)
    assert re.search(r"test_small_models.py, line \d+ at operator aten._local_scalar_dense.default", str(told.value))


def test_a_config_of_hugging_face_does_as_a_factory(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    facts = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config.write_text(json.dumps({"model_type": "llama", "vocab_size": 64, **facts}))
    traced = trace(str(config), ROWS, LENGTH, ["half"])
    assert (traced.model, traced.blocks) == ("LlamaForCausalLM", 2)
    for content, why in (
        ("[]", "it has no model_type"),
        ('{"spec": {}}', "it has no model_type"),
        ("{", "JSONDecodeError"),
    ):
        config.write_text(content)
        with pytest.raises(TracingError, match=rf"this is no config\.json of Hugging Face: {why}"):
            trace(str(config), ROWS, LENGTH)


def test_errors_of_transformers_about_a_config_are_reported_as_such(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "llama", "rms_norm_eps": "1e-06"}))
    with pytest.raises(TracingError) as caught:
        trace(str(config), ROWS, LENGTH)
    told = str(caught.value)
    assert "rms_norm_eps" in told
    assert "float" in told
    assert "factory" not in told
    assert "\n" not in told
