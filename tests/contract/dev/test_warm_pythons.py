"""A Python that is forked after its imports is like a new one: its ending, its output, and what the hooks reach."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
import small_trainings
from warm_pythons import LIBRARIES, WarmPython

_ORIGINALS = f"""
import importlib, json, sys
for name in {LIBRARIES}:
    importlib.import_module(name)
import accelerate.data_loader, safetensors.torch
replaced = (accelerate.data_loader.skip_first_batches, safetensors.safe_open, safetensors.torch.save_file)
originals = [each.__wrapped__ for each in replaced]
held = [
    f"{{module}}.{{name}}"
    for module in list(sys.modules)
    for name, value in vars(sys.modules[module]).items()
    if module != "__main__" and any(value is each for each in originals)
]
print("held:" + json.dumps(sorted(held)))
"""


def warm(directory: Path, text: str, **variables: str) -> WarmPython:
    script = directory / "script.py"
    script.write_text(text)
    return WarmPython([str(script), "word"], {**os.environ, **variables}, ("json",))


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", 0),
        ("raise SystemExit", 0),
        ("raise SystemExit(3)", 3),
        ("raise SystemExit(-1)", 255),
        ("raise SystemExit('in words')", 1),
        ("1 / 0", 1),
        ("raise KeyboardInterrupt", -2),
        ("import os; os.kill(os.getpid(), 9)", -9),
    ],
)
def test_the_exit_code_is_that_of_a_new_python(text: str, code: int, tmp_path: Path) -> None:
    process = warm(tmp_path, text)
    process.communicate(60)
    process.kill()
    assert process.returncode == code


def test_it_has_its_own_environment_arguments_and_main_module(tmp_path: Path) -> None:
    text = "import os, sys, __main__\nprint(os.environ['OWN'], sys.argv[1:], __main__.__file__, sys.path[0])"
    process = warm(tmp_path, text, OWN="own")
    output, _ = process.communicate(60)
    process.kill()
    assert output == f"own ['word'] {tmp_path}/script.py {tmp_path}\n"


def test_it_ends_after_its_threads_and_atexit_callbacks(tmp_path: Path) -> None:
    text = """
import atexit, sys, threading, time
atexit.register(lambda: sys.stdout.write("registered"))
threading.Thread(target=lambda: (time.sleep(0.2), sys.stdout.write("thread "))).start()
sys.stdout.write("script ")
raise SystemExit(4)
"""
    process = warm(tmp_path, text)
    output, _ = process.communicate(60)
    process.kill()
    assert (process.returncode, output) == (4, "script thread registered")


def test_one_that_goes_on_is_killed(tmp_path: Path) -> None:
    process = warm(tmp_path, "import time; time.sleep(600)")
    with pytest.raises(subprocess.TimeoutExpired):
        process.communicate(0.1)
    process.kill()
    assert process.returncode == -signal.SIGKILL


def test_hooks_also_replace_functions_that_a_library_has_copied(tmp_path: Path) -> None:
    script, saves = tmp_path / "script.py", tmp_path / "saves"
    script.write_text(_ORIGINALS)
    variables = {"INTEGRATION": "accelerate", "CHECKPOINT_PATH": str(saves), "ATTEMPT": "1"}
    variables |= {"RESUME_FROM": str(saves / "step-1"), "RESUME_SAMPLES": "8"}
    warm, new = (
        run(script, "fp32-ddp-none-mb8x1", tmp_path, 1, (), **variables)[0].output
        for run in (small_trainings.run, small_trainings.run_anew)
    )
    held, held_by_new = (json.loads(output.partition("held:")[2].splitlines()[0]) for output in (warm, new))
    assert held == held_by_new
