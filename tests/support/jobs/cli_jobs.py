"""Jobs for the tests of the `memtune` command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from memtune_cli.main import main

ROOT = Path(__file__).parents[3]
DENSE = str(ROOT / "examples" / "llama-7b-8gpu.yaml")


def job(**changes: Any) -> dict[str, Any]:
    """Return the dense example with fields replaced: ``training__globalBatchSize=100``."""
    data: dict[str, Any] = yaml.safe_load(Path(DENSE).read_text())
    for path, value in changes.items():
        *parents, name = path.split("__")
        block = data["spec"]
        for parent in parents:
            block = block[parent]
        block[name] = value
    return data


def write_job(folder: Path, data: object) -> str:
    path = folder / "job.yaml"
    path.write_text(data if isinstance(data, str) else yaml.safe_dump(data))
    return str(path)


def refusal_message(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command that must be refused, and return its message."""
    assert main(arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("memtune: ")
    assert "Traceback" not in output.err
    return output.err
