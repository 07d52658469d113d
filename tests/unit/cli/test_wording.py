"""Words and numbers of the pages: no wrong plural, no line for zero."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from memtune_cli.main import main

EXAMPLES = Path(__file__).parents[3] / "examples"
ONE_GPU = [str(EXAMPLES / "qlora-24gb.yaml"), str(EXAMPLES / "quickstart.yaml")]
WRONG = re.compile(r"(?<![\d.,])1 (GPUs|ranks|more families|nodes)|/ 1 rank|\(0 x |of it 0\.0 GiB|\(0\.0–")


@pytest.mark.parametrize("file", ONE_GPU, ids=["qlora", "quickstart"])
@pytest.mark.parametrize("command", ["plan", "explain"])
def test_counts_are_singular_or_plural_and_zeros_are_omitted(
    command: str, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, file]) == 0
    page = capsys.readouterr().out
    assert WRONG.findall(page) == []
    # Legend entries that would show as zero are combined into one, or left out if their sum is zero.
    assert not re.search(r"^  \S (\w| )+ 0\.0 GiB", page, re.MULTILINE)


def test_one_omitted_family_is_singular(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = yaml.safe_load((EXAMPLES / "llama-7b-8gpu.yaml").read_text())
    job["spec"]["resources"] = {"gpusPerNode": 8, "gpuMemory": "6Gi"}
    # ddp, z0 to z3 and two of fsdp are seven shardings, of which six are shown.
    job["spec"]["tuning"]["space"] = {
        "checkpointing": ["none"],
        "backends": ["ddp", "deepspeed", "fsdp"],
        "fsdpStrategies": ["full", "shard-grad-op"],
    }
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(job))
    assert main(["plan", str(file)]) == 1
    assert "… and 1 more family; " in capsys.readouterr().out


@pytest.mark.parametrize("command", [["plan"], ["estimate", "--plan", "fp32-ddp-full-mb8x8"]])
def test_no_speed_is_predicted_for_a_virtual_gpu(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """It computes on CPUs, however fast the GPU with the closest memory is."""
    assert main([*command, str(EXAMPLES / "quickstart.yaml")]) == 0
    page = capsys.readouterr().out
    assert "quickstart on 1 × virtual GPU of 256 MiB, 64 sequences" in " ".join(page.split())
    assert "tokens/s" not in page
    assert page.count("Speed        -  (a virtual GPU computes on CPUs, whose speed is not predicted") == 1


def test_the_table_for_varying_lengths_shows_the_deciding_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = yaml.safe_load((EXAMPLES / "llama-7b-8gpu.yaml").read_text())
    job["spec"]["training"]["varyingLengths"] = True
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(job))
    assert main(["plan", str(file)]) == 0
    page = capsys.readouterr().out
    rows = re.findall(r"^ +\d+  bf16\S+ +([\d.]+) +[\d.]+–([\d.]+) +([\d.]+) +9[5-9]%", page, re.MULTILINE)
    assert re.search(r"#  plan +peak GiB +between +needed +fits", page)
    assert any(float(upper) > 79.2 for _, upper, _ in rows), "plans fit whose peak may not"
    assert all(float(needed) < float(peak) for peak, _, needed in rows)
