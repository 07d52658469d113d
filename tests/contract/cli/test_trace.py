"""`memtune trace`: from a user's function to a file or an error message."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from warm_environment import tracing_python

from memtune.wire.trace import loads
from memtune_cli.main import main

PROGRAMS = Path(__file__).parents[2] / "support" / "programs"


@pytest.fixture(autouse=True)
def _beside_the_users_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(PROGRAMS)


@pytest.fixture
def _warm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork what traces a model; the first test starts it anew."""
    monkeypatch.setattr(sys, "executable", tracing_python())


def test_a_factory_becomes_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "layers.json"
    arguments = ["--batch", "2", "--sequence-length", "4", "--numerics", "full", "--output", str(file)]
    assert main(["trace", "factories:plain", *arguments]) == 0
    assert f"{file}: Layers, 3,168 parameters, 3 repeated blocks, 4 tokens a row" in capsys.readouterr().out
    assert main(["timeline", str(file), "--plan", "fp32-fsdp-full-mb64x2", "--gpus-per-node", "4"]) == 0
    assert loads(file.read_text()).total == 3 * (32 * 32 + 32)


@pytest.mark.usefixtures("_warm")
def test_a_failing_factory_is_reported_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "factories:data_dependent", "--output", str(tmp_path / "never.json")]) == 2
    output = capsys.readouterr().err.strip()
    assert output.startswith(
        "memtune: factories:data_dependent: tracing stopped in Choosing, operator aten.index.Tensor"
    )
    assert "\n" not in output


@pytest.mark.usefixtures("_warm")
def test_a_factory_may_print_bytes_that_are_no_text(tmp_path: Path) -> None:
    file = tmp_path / "printing.json"
    assert main(["trace", "factories:printing", "--numerics", "full", "--output", str(file)]) == 0
    assert file.exists()


def test_the_last_output_of_a_broken_watcher_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho Traceback >&2; echo ImportError: no such name >&2; exit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    assert main(["trace", "factories:plain", "--output", str(tmp_path / "never.json")]) == 2
    assert "ended with 1, for no reason that the factory has: ImportError: no such name" in capsys.readouterr().err


def test_without_torch_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    assert main(["trace", "factories:plain"]) == 2
    assert "tracing needs torch, which is not installed; pip install" in capsys.readouterr().err


def test_an_invalid_quantity_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["trace", "factories:plain", "--memory", "lots"])
    assert ended.value.code == 2
    assert "'lots' is not a quantity of memory" in capsys.readouterr().err
