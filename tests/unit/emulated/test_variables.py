"""The variables of a process on the emulated GPU."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from memtune_runner.emulated.variables import unnamed_file


def test_the_table_of_processes_needs_no_files_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    descriptor = unnamed_file()
    try:
        Path(f"/proc/self/fd/{descriptor}").write_text("of all processes")
        assert os.pread(descriptor, 16, 0) == b"of all processes"
        assert "(deleted)" in str(Path(f"/proc/self/fd/{descriptor}").readlink())
    finally:
        os.close(descriptor)
