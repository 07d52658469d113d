"""The driver's version, as the kernel's module words it."""

from __future__ import annotations

from pathlib import Path

import pytest

from memtune_runner.rank.driver import driver_version


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n", "550.54.15"),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  560.35.03  Release Build\n"
            "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n",
            "560.35.03",
        ),
        ("nothing that anybody knows", None),
    ],
)
def test_the_version_is_the_first_that_is_written(tmp_path: Path, text: str, version: str | None) -> None:
    file = tmp_path / "version"
    file.write_text(text)
    assert driver_version(file) == version


def test_where_no_driver_is_loaded_there_is_no_version(tmp_path: Path) -> None:
    assert driver_version(tmp_path / "version") is None
