"""A probe under each knob that a job may open has it applied, as its report says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from small_trainings import PROBE, SCRIPTS, Outcome, run
from torch import nn
from torch.nn import functional

from memtune.model.plain import from_facts
from memtune.plans.plan import Plan
from memtune.wire.applied import OPENED_FIELDS, mismatch
from memtune.wire.report import Ending
from memtune_runner.engine.attention import attention_watched
from memtune_runner.rank import applied_knobs

pytestmark = pytest.mark.long

TRAINER = Path(__file__).parents[2] / "support" / "programs" / "trainer_script.py"
FACTS = {"hiddenSize": 64, "layers": 2, "heads": 4, "kvHeads": 2, "ffnSize": 128, "vocabSize": 256}
DROPOUT = {**FACTS, "attentionDropout": 0.1}


def differences(outcome: Outcome, plan: str, integration: str) -> str:
    assert outcome.report.ending is Ending.SUCCEEDED, outcome.output[-3000:]
    applied = outcome.report.applied
    return mismatch(Plan.parse(plan), applied, 1, is_probe=True, integration=integration, opened=OPENED_FIELDS)


@pytest.mark.parametrize(
    ("plan", "facts", "seen"),
    [
        ("bf16-ddp-none-mb2x2", FACTS, ("adamw", "sdpa", False)),
        ("bf16-ddp-none-mb2x2", DROPOUT, ("adamw", "sdpa", False)),
        ("bf16-ddp-full-mb2x2-eager", FACTS, ("adamw", "eager", False)),
        ("bf16-ddp-none-mb2x2-fl", FACTS, ("adamw", "sdpa", True)),
        ("bf16-z2-none-mb2x2-lion", FACTS, ("lion", "sdpa", False)),
        ("bf16-fsdp-none-mb2x2-sgd-eager-fl", FACTS, ("sgd", "eager", True)),
        ("bf16-ddp-none-mb2x2-muon", FACTS, ("muon", "sdpa", False)),
        ("bf16-ddp-none-mb2x2-adafactor", FACTS, ("adafactor", "sdpa", False)),
    ],
)
def test_opened_knobs_reach_the_built_in_trainer(
    plan: str,
    facts: dict[str, float],
    seen: tuple[str, str, bool],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRAINER_ARGUMENTS", "--steps 2")
    architecture = json.dumps(asdict(from_facts(facts)))
    (outcome,) = run(TRAINER, plan, tmp_path, 1, **PROBE, INTEGRATION="env", ARCHITECTURE=architecture)
    assert differences(outcome, plan, "sdk") == ""
    applied = outcome.report.applied
    assert (applied.optimizer, applied.attention, applied.fused_loss) == seen


@pytest.mark.parametrize(
    ("plan", "attention"), [("bf16-ddp-none-mb4x2-sgd", "sdpa"), ("bf16-ddp-full-mb4x2-eager", "eager")]
)
def test_opened_knobs_reach_a_loop_over_the_engine(plan: str, attention: str, tmp_path: Path) -> None:
    (outcome,) = run(SCRIPTS / "sdk_loop.py", plan, tmp_path, 1, **PROBE, INTEGRATION="sdk")
    assert differences(outcome, plan, "sdk") == ""
    assert (outcome.report.applied.attention, outcome.report.applied.fused_loss) == (attention, False)


@pytest.mark.parametrize("optimizer", ["adamw", "adafactor"])
def test_opened_knobs_reach_the_trainer_of_transformers(optimizer: str, tmp_path: Path) -> None:
    plan = "bf16-ddp-none-mb4x2" + ("-adafactor" if optimizer == "adafactor" else "")
    (outcome,) = run(SCRIPTS / "hf_trainer.py", plan, tmp_path, 1, **PROBE, INTEGRATION="hf-trainer")
    assert differences(outcome, plan, "hf-trainer") == ""
    assert outcome.report.applied.optimizer == optimizer
    assert outcome.report.applied.attention is None, "the script decides it"


def test_a_script_with_an_optimizer_of_its_own_is_caught(tmp_path: Path) -> None:
    script = tmp_path / "own.py"
    text = (SCRIPTS / "sdk_loop.py").read_text().replace("lr=1e-3)", "optimizer=AdamW)")
    script.write_text(
        text.replace(
            "import os\n",
            f"import os\nimport sys\n\nsys.path.insert(0, {str(SCRIPTS)!r})\nfrom torch.optim import AdamW\n",
        )
    )
    (outcome,) = run(script, "bf16-ddp-none-mb4x2-sgd", tmp_path, 1, **PROBE, INTEGRATION="sdk")
    found = differences(outcome, "bf16-ddp-none-mb4x2-sgd", "sdk")
    assert found.startswith("applied.optimizer is adamw, but plan bf16-ddp-none-mb4x2-sgd asks for sgd"), found
    assert "give initialize no optimizer=" in found


@pytest.fixture
def _nothing_seen() -> Iterator[None]:
    applied_knobs.reset()
    yield
    applied_knobs.reset()


@pytest.mark.usefixtures("_nothing_seen")
def test_attention_inside_a_function_of_torch_is_seen_when_it_comes() -> None:
    projector, layer = nn.Linear(8, 8), nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    plain, row = functional.scaled_dot_product_attention, torch.zeros(1, 4, 8)
    with attention_watched(projector):
        projector(row)
    assert applied_knobs.attention() is None, "of a pass without that function, nothing is known"
    with attention_watched(layer):
        layer(row)
    assert applied_knobs.attention() == "sdpa"
    assert functional.scaled_dot_product_attention is plain


@pytest.mark.usefixtures("_nothing_seen")
def test_watching_attention_compiles_nothing_twice() -> None:
    compiled = 0

    def backend(module: torch.fx.GraphModule, _: object) -> object:
        nonlocal compiled
        compiled += 1
        return module.forward

    model, loss = nn.Linear(8, 8), torch.compile(lambda weight: weight.square().mean(), backend=backend)
    with attention_watched(model):
        loss(model.weight).backward()
    loss(model.weight).backward()
    assert compiled == 1
