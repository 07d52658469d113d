"""`assert_peak` on the emulated GPU: a change of a model that takes more memory fails, and names its line."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from warm_environment import warm_emulated

from memtune.units import MIB

_MODEL = """\
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(1024, WIDTH), nn.Linear(WIDTH, 1024)

    def forward(self, x):
        return self.down(self.up(x))

net = Net().cuda()
optimizer = torch.optim.AdamW(net.parameters())
for _ in range(2):
    net(torch.zeros(8192, 1024, device="cuda")).sum().backward()
    optimizer.step()
"""
_TESTS = """\
def test_one_gpu(assert_peak):
    result = assert_peak("model.py", gpu="a100-40gb", gpus=2)
    assert (result["gpu"]["product"], result["gpus"]) == ("NVIDIA A100-SXM4-40GB", 2)

def test_eight_ranks(assert_peak):
    assert assert_peak("python model.py", at_most="1 GiB", ranks=8)["ranks"] == 8

def test_too_large(assert_peak):
    assert_peak("large.py", gpu="t4-16gb", at_most="40 GiB")

def test_broken(assert_peak):
    assert_peak("broken.py", at_most="40 GiB")
"""


def _pytest(project: Path, *options: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "pytest", "-p", "memtune_cli.pytest_plugin", "--memtune-require", *options]
    # The plugin by its name alone, whether MemTune is installed here or not.
    variables = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=project, env=variables)
    return done.returncode, done.stdout


def test_a_pull_request_that_costs_memory_fails(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text(f"[pytest]\nmemtune_python = {warm_emulated()}\n")
    (tmp_path / "test_memory.py").write_text(_TESTS)
    (tmp_path / "model.py").write_text(_MODEL.replace("WIDTH", "1024"))
    (tmp_path / "large.py").write_text("import torch\nkept = torch.empty(20 * 2**30, device='cuda')\n")
    (tmp_path / "broken.py").write_text("import torch\ntorch.ones(1, device='cuda')\nraise KeyError('hidden')\n")
    code, printed = _pytest(tmp_path, "--memtune-write-baseline")
    assert code == 1
    assert "2 failed, 2 passed" in printed
    assert "The command ran out of memory on the emulated t4-16gb: OutOfMemoryError: CUDA out of memory." in printed
    assert "KeyError: 'hidden'" in printed
    baseline = json.loads((tmp_path / "memtune-baseline.json").read_text())
    # Two moments of 2 Mi weights, in fp32.
    lines = baseline["peaks"]["test_memory.py::test_one_gpu"]["lines"]
    assert lines["model.py, <module>: optimizer.step()"] >= 16 * MIB

    tests = ("-k", "one_gpu or eight_ranks")
    assert _pytest(tmp_path, *tests)[0] == 0
    (tmp_path / "model.py").write_text("# A comment moves every line.\n" + _MODEL.replace("WIDTH", "4096"))
    code, printed = _pytest(tmp_path, *tests)
    assert code == 1
    assert "1 failed, 1 passed" in printed
    assert "above its baseline of" in printed
    # 8,192 rows of 4,096 numbers, of 4 bytes; the peak of the smaller model was at a moment when its were gone.
    assert "+128 MiB  model.py, forward: return self.down(self.up(x))" in printed


def test_the_example_keeps_to_its_baseline(tmp_path: Path) -> None:
    project = shutil.copytree(Path(__file__).parents[2] / "examples" / "peaks", tmp_path / "peaks")
    code, printed = _pytest(project, "-o", f"memtune_python={warm_emulated()}")
    assert code == 0, printed
