"""Classifies how a command ended that neither completed nor ran out of GPU memory."""

from __future__ import annotations

import errno
import re
import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from memtune_runner.emulated.exit_codes import HOST_MEMORY, MISSING_SYMBOL

# The exit code of a shell or the dynamic linker for a program that cannot be run.
_CANNOT_BE_RUN = 127


def of_exception(error: BaseException) -> str | None:
    """Return the outcome that an exception stands for, if any."""
    text = str(error)
    is_full = isinstance(error, OSError) and error.errno == errno.ENOMEM
    # torch's CPU allocator raises a plain RuntimeError.
    if is_full or isinstance(error, MemoryError) or "DefaultCPUAllocator: can't allocate memory" in text:
        return HOST_MEMORY
    if isinstance(error, (ImportError, OSError, AttributeError)) and re.search(r"undefined symbol: \w+", text):
        return MISSING_SYMBOL
    return None


def of_process(code: int | None, told: Mapping[str, Any]) -> tuple[str | None, str]:
    """Return a process's outcome and message; the outcome is None if the exit code says enough."""
    if told:
        return told.get("outcome"), str(told.get("message", ""))
    if code == -signal.SIGKILL:
        return HOST_MEMORY, "it was killed by SIGKILL, as Linux does when the host or its container has no memory left"
    if code == _CANNOT_BE_RUN:
        return MISSING_SYMBOL, "the dynamic linker names the symbol above"
    return None, ""


def prefer_for_oom_killer() -> None:
    """Make this process the OOM killer's first choice."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
