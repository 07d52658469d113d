"""Traces of small models: their events and the sentences about what cannot be traced."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from memtune import environment
from memtune import trace as events
from memtune.plan import Plan
from memtune.replay import Replayer, live_peak
from memtune.trace import dumps, loads
from memtune.trace_message import unpack
from memtune_runner.failures import INSTALL
from memtune_runner.tracing import TracingError, trace
from memtune_runner.tracing.factory import build

ROWS, LENGTH = 2, 4
SUPPORT = Path(__file__).parents[1] / "support"


@pytest.fixture(autouse=True)
def _factories_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(SUPPORT))
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


def test_what_a_factory_checkpoints_by_itself_is_left_to_the_plan() -> None:
    """As the runner does it: predictions were 36% low where the factory switched it on."""
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
    # It keeps something, of which autograd asks before the model's own backward pass begins.
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
        ("factories:not_a_model", "returned str; it must return a model"),
        ("factories:alone", "what goes into it is unknown"),
        ("factories:without_loss", "Linear gives no loss"),
        ("factories:at_odds", "do not agree on a first dimension"),
        ("factories:data_dependent", "stopped in Choosing, operator aten.index.Tensor: what comes next depends on"),
        ("factories:row_by_row", "does other things with 3 rows than with 2"),
        (
            "factories:custom_operator",
            "stopped in Custom, operator memtune_test.twice.default: the operator does not say",
        ),
    ],
)
def test_what_cannot_be_traced_is_told_in_a_sentence(factory: str, words: str) -> None:
    with pytest.raises(TracingError) as told:
        trace(factory, ROWS, LENGTH, ["full"])
    assert words in str(told.value)
    assert "\n" not in str(told.value)


def refused(factory: str, folder: Path, *limits: str) -> str:
    """What the process that traces says of a factory that it must refuse."""
    command = [sys.executable, "-m", "memtune_runner.tracing", factory, "--batch", "2", "--sequence-length", "4"]
    command += ["--memory", "4Gi", "--time-limit", "100", "--output", str(folder / "trace.json"), *limits]
    variables = os.environ | {"PYTHONPATH": os.pathsep.join([str(SUPPORT), str(folder), *sys.path])}
    ended = subprocess.run(command, check=False, capture_output=True, text=True, env=variables, timeout=300)
    assert ended.returncode == 2
    assert not (folder / "trace.json").exists()
    return ended.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize(("volume", "mounted"), [("code", True), ("work", False)])
def test_a_message_says_whether_the_factory_came_from_a_volume(volume: str, mounted: bool, tmp_path: Path) -> None:
    """In a working directory that is one, torch must open nothing of its own."""
    for name in ("code", "work"):
        (tmp_path / name).mkdir()
    (tmp_path / "code" / "mine.py").write_text("from factories import plain\n")
    message = tmp_path / "message"
    command = [sys.executable, "-m", "memtune_runner.tracing", "mine:plain", "--batch", "2", "--sequence-length", "4"]
    command += ["--memory", "4Gi", "--time-limit", "100", "--numerics", "full", "--message", "--output", str(message)]
    told = {
        "PYTHONPATH": os.pathsep.join([str(tmp_path / "code"), str(SUPPORT), *sys.path]),
        environment.TRACE_VOLUMES: f"/nowhere:{tmp_path / volume}",
    }
    subprocess.run(command, check=True, env=os.environ | told, cwd=tmp_path / "work", timeout=300)
    assert unpack(message.read_text()).mounted is mounted


@pytest.mark.parametrize(
    ("factory", "limits", "words"),
    [
        ("factories:endless", ["--time-limit", "1"], "tracing took longer than it may"),
        ("factories:greedy", [], "factories.py, line"),
        ("factories:hoarding", [], "tracing stopped in Hoarding, operator"),
    ],
)
def test_limits_end_a_trace(factory: str, limits: list[str], words: str, tmp_path: Path) -> None:
    assert words in refused(factory, tmp_path, *limits)


def test_what_has_been_told_is_the_last_word(tmp_path: Path) -> None:
    """Whatever the user's module leaves behind: a thread that waits, or what prints when Python ends."""
    lines = (
        "import atexit, sys, threading",
        "threading.Thread(target=threading.Event().wait).start()",
        "atexit.register(lambda: print('ended', file=sys.stderr))",
        "1 / 0",
    )
    (tmp_path / "ending.py").write_text("\n".join(lines))
    assert "raised ZeroDivisionError: division by zero in" in refused("ending:build", tmp_path)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("import torch; HELD = torch.ones(1 << 36)", "took more host memory than it may in"),
        ("HELD = bytearray(1 << 40)", "took more host memory than it may in"),
        ("import torch; torch.zeros(1).cuda()", "there is no GPU where a model is traced"),
        ("import sys; sys.exit(0)", "raised SystemExit: 0 in"),
        ("import torch; torch.ops.load_library('/nowhere/kernels.so')", "/nowhere/kernels.so"),
        ("raise ValueError('two\\nlines')", "raised ValueError: two in"),
        ("import no_library.of_models", f"line 1, which is not installed; {INSTALL}"),
    ],
)
def test_what_a_module_does_when_it_is_imported(line: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "importing.py").write_text(f"{line}\n")
    told = refused("importing:build", tmp_path)
    assert told.startswith("factory 'importing:build': importing importing ")
    assert words in told
    assert "importing.py, line 1" in told


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
    assert re.search(r"test_tracing.py, line \d+ at operator aten._local_scalar_dense.default", str(told.value))


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


def test_what_transformers_finds_wrong_with_a_config_is_told_as_such(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "llama", "rms_norm_eps": "1e-06"}))
    with pytest.raises(TracingError) as caught:
        trace(str(config), ROWS, LENGTH)
    told = str(caught.value)
    assert "rms_norm_eps" in told
    assert "float" in told
    assert "factory" not in told
    assert "\n" not in told
