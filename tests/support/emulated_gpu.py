"""Whether this machine can run tests/emulated: exits with 3 and one sentence if it cannot."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

CANNOT_RUN = 3
_ROOT = Path(__file__).resolve().parents[2]
PYTHON = _ROOT / ".venv-emulated" / "bin" / "python"


def why_not() -> str | None:
    """Why no GPU can be emulated here; None if one can."""
    if platform.system() != "Linux" or platform.machine() not in ("x86_64", "aarch64"):
        return f"they need Linux on x86_64 or aarch64, and this is {platform.system()} on {platform.machine()}"
    if shutil.which("cc") is None:
        return "they need a C compiler, and there is no cc"
    return None if PYTHON.exists() else "they need the CUDA build of torch: run make env-emulated"


def emulate(
    script: Path, *options: str, arguments: tuple[str, ...] = (), limit: int = 400
) -> tuple[int, dict[str, Any]]:
    """Run `memtune emulate` on a script; return its exit code and JSON."""
    command = [sys.executable, "-m", "memtune_cli.main", "emulate", "--format", "json", *options, "--"]
    done = subprocess.run(
        [*command, str(PYTHON), str(script), *arguments],
        check=False, capture_output=True, text=True, timeout=limit, cwd=script.parent,
    )  # fmt: skip
    assert done.stdout, done.stderr[-2000:]
    return done.returncode, {**json.loads(done.stdout), "printed": done.stderr}


if __name__ == "__main__":
    reason = why_not()
    print(reason or "")
    sys.exit(CANNOT_RUN if reason else 0)
