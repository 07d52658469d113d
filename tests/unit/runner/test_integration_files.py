"""Files of the integrations: the DeepSpeed configuration, the Trainer's state."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from memtune.plans.knobs import Offload
from memtune.plans.plan import Plan
from memtune.wire.run import RunKind
from memtune_runner.integrations import hf_trainer
from memtune_runner.rank.bad_input import BadInputError
from memtune_runner.rank.deepspeed_file import prepare
from memtune_runner.rank.settings import Settings


def env_settings(plan: str, config: Path) -> Settings:
    parsed = Plan.parse(plan)
    disk = config.parent.parent if parsed.offload is Offload.NVME else None
    return Settings(parsed, RunKind.TRAIN, "env", parsed.global_batch(1), 32, deepspeed_config=config, nvme_path=disk)


def test_the_steps_of_the_first_attempt_are_kept(tmp_path: Path) -> None:
    assert hf_trainer.first_max_steps(None) is None
    assert hf_trainer.first_max_steps(tmp_path) is None
    (tmp_path / "trainer_state.json").write_text(json.dumps({"max_steps": 12, "train_batch_size": 4}))
    assert hf_trainer.first_max_steps(tmp_path) == 12
    (tmp_path / "trainer_state.json").write_text("{")
    assert hf_trainer.first_max_steps(tmp_path) is None


def test_the_deepspeed_configuration_is_written_where_the_script_looks_for_it(tmp_path: Path) -> None:
    path = tmp_path / "new" / "ds.json"
    prepare(env_settings("bf16-z3-none-mb2x4-onvme", config=path))
    config = json.loads(path.read_text())
    assert (config["train_micro_batch_size_per_gpu"], config["zero_optimization"]["stage"]) == (2, 3)
    assert config["zero_optimization"]["offload_param"]["nvme_path"] == str(tmp_path)


def test_a_plan_without_deepspeed_gets_no_configuration(tmp_path: Path) -> None:
    prepare(env_settings("bf16-ddp-none-mb2x4", config=tmp_path / "ds.json"))
    assert not (tmp_path / "ds.json").exists()


def test_a_configuration_that_cannot_be_written_is_reported_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInputError, match=r"MEMTUNE_DEEPSPEED_CONFIG=.*file/ds\.json: the configuration cannot"):
        prepare(env_settings("bf16-z2-none-mb2x4", config=tmp_path / "file" / "ds.json"))
