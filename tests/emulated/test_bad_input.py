"""What commands ask of the driver, and how those end that an emulated GPU cannot serve."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from emulated_gpu_requirements import PYTHON
from emulated_runs import emulate

_SCRIPTS = Path(__file__).parent / "scripts"


def test_nvidia_smi_and_nvml_answer_for_the_emulated_gpu() -> None:
    code, result = emulate(_SCRIPTS / "driver.py", "--gpu", "a100-40gb")
    assert code == 0, result["printed"][-2000:]
    assert result["printed"].splitlines()[-5:] == [
        "NVIDIA A100-SXM4-40GB, 40325, [N/A], 580.65.06, 8.0",
        "index, memory.total [MiB]",
        "0, 40325 MiB",
        "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-6d656d74-756e-652d-656d-756c61746564)",
        "2 nvidia-smi of the emulated GPU answers -L, --query-gpu=... --format=csv, and no options at all; "
        "not: topo -m",
    ]


def test_too_little_host_memory_is_reported_as_such(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import resource, torch\ntorch.ones(1, device='cuda')\n"
        "resource.setrlimit(resource.RLIMIT_DATA, (2**30, 2**30))\ntorch.ones(2**30)\n"
    )
    code, result = emulate(script, python=PYTHON)
    assert (code, result["outcome"]) == (8, "hostMemory")
    assert "can't allocate memory" in result["message"]
    assert result["measured"]["peakBytes"]["allocated"] == 512
    # What Linux does when nothing is left; it chooses this process before others.
    script.write_text(
        "import os, pathlib\nassert pathlib.Path('/proc/self/oom_score_adj').read_text().strip() == '1000'\n"
        "os.kill(os.getpid(), 9)\n"
    )
    code, result = emulate(script, python=PYTHON)
    assert (code, result["outcome"], result["measured"]) == (8, "hostMemory", None)
    assert "killed by SIGKILL" in result["message"]


@pytest.mark.parametrize("mode", ["RTLD_NOW", "RTLD_LAZY"])
def test_a_library_with_a_missing_symbol_is_reported(tmp_path: Path, mode: str) -> None:
    source, library, script = tmp_path / "kernels.c", tmp_path / "kernels.so", tmp_path / "script.py"
    source.write_text("int cusparseNobodyKnows(void);\nint start(void) { return cusparseNobodyKnows(); }\n")
    subprocess.run(["cc", "-shared", "-fPIC", source, "-o", library], check=True)
    script.write_text(f"import ctypes, os, torch\nctypes.CDLL('{library}', os.{mode}).start()\n")
    code, result = emulate(script, python=PYTHON)
    assert (code, result["outcome"]) == (9, "missingSymbol")
    # By a lazy library only the dynamic linker learns of it, which ends the process.
    where = result["message"] if mode == "RTLD_NOW" else result["printed"]
    assert "undefined symbol: cusparseNobodyKnows" in where


def test_a_failure_after_values_that_nobody_computed_says_so(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\nloss = torch.empty(2000, 2000, device='cuda').sum()\nassert loss.item() < 1, 'diverged'\n"
    )
    command = [sys.executable, "-m", "memtune_cli.main", "emulate", "--", str(PYTHON), str(script)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert "AssertionError: diverged" in done.stdout
    assert (
        "It had read values that no kernel has computed, which are listed below and may be the reason." in done.stdout
    )
    assert f"{script}:3 (1 times)" in done.stdout


def test_a_script_that_will_not_end_is_ended(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True:\n    signal.pause()\n")
    started = time.monotonic()
    code, result = emulate(script, "--time-limit", "3", python=PYTHON)
    assert (code, result["outcome"], result["measured"]) == (7, "timeLimit", None)
    assert time.monotonic() - started < 60


def test_a_gpu_of_almost_that_name_is_named() -> None:
    command = [sys.executable, "-m", "memtune_cli.main", "emulate", "--gpu", "h100", "--", str(PYTHON), "train.py"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 5
    assert "did you mean" in done.stderr
    assert "h100-80gb?" in done.stderr
