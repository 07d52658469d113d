"""Which framework a command line starts, and which integrations reject it."""

from __future__ import annotations

import pytest

from memtune.wire.frameworks import FRAMEWORKS, framework_of


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["ray", "job", "submit", "--", "python", "train.py"], "Ray Train"),
        (["/opt/conda/bin/tune", "run", "full_finetune_single_device"], "torchtune"),
        (["sh", "-ec", "cd /data && exec litgpt finetune_lora model"], "LitGPT"),
        (["accelerate", "launch", "-m", "axolotl.cli.train", "config.yaml"], "Axolotl"),
        (["python", "-m", "torch.distributed.run", "-m", "axolotl.cli.train"], "Axolotl"),
        (["llamafactory-cli", "train", "llama.yaml"], "LLaMA-Factory"),
        (["env", "A=1", "axolotl", "train", "config.yaml"], "Axolotl"),
        (["/usr/bin/env", "-i", "A=1", "B=2", "litgpt", "pretrain"], "LitGPT"),
        (["uv", "run", "llamafactory-cli", "train", "llama.yaml"], "LLaMA-Factory"),
        (["uv", "run", "--no-sync", "-m", "axolotl.cli.train"], "Axolotl"),
        (["poetry", "run", "tune", "run", "recipe"], "torchtune"),
        (["bash", "-c", "A=1 exec env B=2 uv run axolotl train"], "Axolotl"),
        (["bash", "-c", "set -e\nlitgpt \\\n  finetune_full \\\n  model\n"], "LitGPT"),
        (["env", "A=1", "bash", "-c", "ray job submit -- python train.py"], "Ray Train"),
        (["timeout", "-k", "30", "-s", "INT", "2h", "litgpt", "pretrain"], "LitGPT"),
        (["nice", "-n", "10", "env", "-u", "DEBUG", "A=1", "litgpt", "pretrain"], "LitGPT"),
        (["bash", "-c", "(cd /data && litgpt pretrain)"], "LitGPT"),
        (["bash", "-c", "if [ -f a ]; then nice litgpt pretrain; else exec torchrun train.py; fi"], "LitGPT"),
        (["bash", "-c", "until timeout 2h litgpt pretrain; do sleep 5; done"], "LitGPT"),
        (["bash", "-c", "for seed in 1 2; do litgpt pretrain --seed $seed; done"], "LitGPT"),
    ],
)
def test_a_command_names_its_framework(command: list[str], name: str) -> None:
    framework = framework_of(command)
    assert framework is not None
    assert framework.name == name


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["torchrun", "train.py", "-m", "axolotl"],
        ["tune", "--epochs", "3"],
        ["bash", "-c", "NAME='litgpt; ray' python train.py"],
        ["bash", "train.sh"],
        ["timeout"],
        ["bash", "-c", "if true; then echo litgpt; fi"],
        ["sh", "-c", "if ! litgpt --help; then python train.py; fi"],
        ["bash", "-c", "ray stop --force; torchrun train.py"],
        ["bash", "-c", "ray start --head && accelerate launch grpo.py"],
        ["ray", "start", "--head"],
        ["env"],
        ["env", "A=1", "torchrun", "train.py"],
        ["uv", "run", "train.py", "-m", "axolotl"],
        ["uv", "pip", "install", "axolotl"],
        ["python", "-m", "trainer.axolotl"],
    ],
)
def test_other_commands_are_left_alone(command: list[str]) -> None:
    assert framework_of(command) is None


def test_a_refusal_names_the_framework_and_the_integration() -> None:
    for framework in FRAMEWORKS:
        assert framework.unsupported("accelerate").startswith(
            f"integration accelerate does not support {framework.name}: "
        )
        assert "accelerate" not in framework.integrations


def test_the_commands_of_litgpt_and_torchtune_are_reached() -> None:
    assert {each.name: each.integrations for each in FRAMEWORKS if each.integrations} == {
        "torchtune": ("env",),
        "LitGPT": ("env", "lightning"),
    }
