"""Every example is a valid job with valid pods and a command line that the runner can parse."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from memtune.api import Job, load_job
from memtune_operator.pods.preflight import check
from memtune_operator.pods.security_policy import Policy
from memtune_runner.command.command import Kind, parse

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
WITH_SCRIPT = [path for path in EXAMPLES if "\n  template:" in path.read_text()]
FINE_TUNES = [path for path in EXAMPLES if "finetune.py" in path.read_text()]
SCRIPTS = sorted((ROOT / "examples" / "scripts").glob("*.py"))
NAMING_THEIR_GPU = [path for path in SCRIPTS if 'torch.device("cuda"' in path.read_text()]
LIBRARIES = {"backends: [deepspeed]": "deepspeed", "--nf4": "bitsandbytes", "flash_attention_2": "flash-attn"}
POLICY = Policy(host_path=True)


def job_in(path: Path) -> Job:
    """Return the job in a file, which may hold other objects first."""
    documents: list[dict[str, Any]] = list(yaml.safe_load_all(path.read_text()))
    return load_job(documents[-1])


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_pods_of_every_example_can_be_made(path: Path) -> None:
    found = check(job_in(path), POLICY, "memtune-runner")
    assert found.blocker is None
    assert found.pod


@pytest.mark.parametrize("path", WITH_SCRIPT, ids=lambda path: path.stem)
def test_the_runner_finds_the_script_and_the_script_knows_its_options(path: Path) -> None:
    job = job_in(path)
    assert job.spec.template
    (container,) = job.spec.template["spec"]["containers"]
    command = parse([*container["command"], *container.get("args", [])])
    assert command.kind is Kind.SCRIPT
    script = (ROOT / command.target).read_text()
    options = [word.partition("=")[0] for word in command.arguments if word.startswith("--")]
    assert [option for option in options if f'"{option}"' not in script] == []
    assert f"Integration: {job.spec.integration};" in script


@pytest.mark.parametrize("path", FINE_TUNES, ids=lambda path: path.stem)
def test_a_fine_tune_names_the_packages_of_its_image(path: Path) -> None:
    text = path.read_text()
    needed = {"torch", "transformers", "accelerate", "peft"}  # Trainer requires accelerate
    needed |= {library for word, library in LIBRARIES.items() if word in text}
    (told,) = re.findall(r"yours: (.*) and examples/scripts", text)
    assert set(told.split(", ")) == needed


def test_the_table_has_every_example_and_no_other() -> None:
    table = (ROOT / "examples" / "README.md").read_text()
    assert sorted(set(re.findall(r"\]\(([\w-]+\.yaml)\)", table))) == [path.name for path in EXAMPLES]
    scripts = {path.name for path in (ROOT / "examples" / "scripts").glob("*.py")}
    assert set(re.findall(r"\]\(scripts/(\w+\.py)\)", table)) == scripts


@pytest.mark.parametrize("path", NAMING_THEIR_GPU, ids=lambda path: path.stem)
def test_a_script_that_names_its_gpu_makes_it_the_current_one_before_it_uses_any(path: Path) -> None:
    script = path.read_text()
    uses = [script.index(use) for use in (".to(device)", "init_process_group(")]
    # NCCL and FSDP2 use the current device, wherever the weights are.
    assert 0 < script.find("torch.cuda.set_device(device)") < min(uses)
