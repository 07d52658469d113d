"""Keeps two lines of torch's out of the log: that an execution trace was enabled, and that it was disabled.

torch calls them warnings, which they are to nobody: MemTune, and not the script, asked for the trace. They come from
C++, where no filter of Python sees them.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

_STDERR = 2
_WARNING = re.compile(rb"^.*execution_trace_observer\.cpp:\d+\] (?:En|Dis)abling Execution Trace Observer\r?\n", re.M)


@contextmanager
def without_trace_warnings() -> Iterator[None]:
    """Show all that is written to standard error in the block once it ends, but for these lines."""
    try:
        shown = os.dup(_STDERR)
    except OSError:  # it is closed, and shows nothing
        yield
        return
    with tempfile.TemporaryFile(buffering=0) as said:
        os.dup2(said.fileno(), _STDERR)
        try:
            yield
        finally:
            os.dup2(shown, _STDERR)
            os.close(shown)
            said.seek(0)
            if others := _WARNING.sub(b"", said.read()):
                with open(_STDERR, "wb", closefd=False) as stderr:
                    stderr.write(others)
