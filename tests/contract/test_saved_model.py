"""What a script saves at its end for others to load is a whole model, also where the plan shards the weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import watched
from safetensors.torch import load_file

from memtune.report import Ending

SCRIPT = Path(__file__).parents[1] / "support" / "saves_model.py"


@pytest.mark.parametrize(("kind", "integration"), [("trainer", "hf-trainer"), ("accelerate", "accelerate")])
def test_a_model_saved_under_stage_3_can_be_loaded(kind: str, integration: str, tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    outcomes = watched.run(SCRIPT, "bf16-z3-none-mb2x1-bk1m", tmp_path, 2, (kind, str(saved)), INTEGRATION=integration)
    assert [each.report.ending for each in outcomes] == [Ending.SUCCEEDED] * 2, outcomes[0].output[-3000:]
    weights = load_file(saved / "model.safetensors")
    assert len(weights) > 10
    assert all(each.numel() for each in weights.values())
