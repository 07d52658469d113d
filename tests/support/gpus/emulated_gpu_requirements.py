"""Whether this machine can run tests/emulated: exits with 3 and one sentence if it cannot."""

from __future__ import annotations

import platform
import shutil
import sys
from pathlib import Path

CANNOT_RUN = 3
_ROOT = Path(__file__).resolve().parents[3]
PYTHON = _ROOT / ".venv-emulated" / "bin" / "python"


def why_not() -> str | None:
    """Why no GPU can be emulated here; None if one can."""
    if platform.system() != "Linux" or platform.machine() not in ("x86_64", "aarch64"):
        return f"they need Linux on x86_64 or aarch64, and this is {platform.system()} on {platform.machine()}"
    if shutil.which("cc") is None:
        return "they need a C compiler, and there is no cc"
    return None if PYTHON.exists() else "they need the CUDA build of torch: run make env-emulated"


if __name__ == "__main__":
    reason = why_not()
    print(reason or "")
    sys.exit(CANNOT_RUN if reason else 0)
