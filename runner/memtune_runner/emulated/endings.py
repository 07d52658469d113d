"""Why a command ended that neither completed nor ran out of the GPU's memory."""

from __future__ import annotations

import errno
import re
import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

HOST_MEMORY, MISSING_SYMBOL = "hostMemory", "missingSymbol"
# What a shell and the dynamic linker give for a program that could not be run.
_CANNOT_BE_RUN = 127


def of_exception(error: BaseException) -> str | None:
    """The outcome that an exception stands for, if it is one of these."""
    text = str(error)
    is_full = isinstance(error, OSError) and error.errno == errno.ENOMEM
    # torch's allocator for the CPU raises a plain RuntimeError.
    if is_full or isinstance(error, MemoryError) or "DefaultCPUAllocator: can't allocate memory" in text:
        return HOST_MEMORY
    if isinstance(error, (ImportError, OSError, AttributeError)) and re.search(r"undefined symbol: \w+", text):
        return MISSING_SYMBOL
    return None


def of_process(code: int | None, told: Mapping[str, Any]) -> tuple[str | None, str]:
    """The outcome and the message of a process; an outcome of None if its exit code says enough."""
    if told:
        return told.get("outcome"), str(told.get("message", ""))
    if code == -signal.SIGKILL:
        return HOST_MEMORY, "it was killed by SIGKILL, as Linux does when the host or its container has no memory left"
    if code == _CANNOT_BE_RUN:
        return MISSING_SYMBOL, "the dynamic linker names the symbol above"
    return None, ""


def go_first() -> None:
    """Let Linux choose this process when the host runs out of memory, and nobody else's."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
