from __future__ import annotations

import platform
from pathlib import Path

import deepspeed_libraries
import pytest
from deepspeed_libraries import CannotBuildError

_MACHINE = f"{platform.machine()}-linux-gnu"


def _libaio_of(root: Path, *machines: str) -> None:
    for each in machines:
        directory = root / "usr" / "lib" / each
        directory.mkdir(parents=True)
        (directory / "libaio.a").touch()


def test_of_several_libaios_that_of_this_machine_is_taken(tmp_path: Path) -> None:
    _libaio_of(tmp_path, "m68k-linux-gnu", _MACHINE, "sparc64-linux-gnu")
    assert deepspeed_libraries.archive_in(tmp_path) == tmp_path / "usr" / "lib" / _MACHINE / "libaio.a"


@pytest.mark.parametrize("machines", [(), ("m68k-linux-gnu",)])
def test_without_a_libaio_of_this_machine_nothing_can_be_built(machines: tuple[str, ...], tmp_path: Path) -> None:
    _libaio_of(tmp_path, *machines)
    with pytest.raises(CannotBuildError, match=f"{_MACHINE}/libaio.a"):
        deepspeed_libraries.archive_in(tmp_path)


@pytest.mark.parametrize("others", [(), ("libraries",)])
def test_what_another_process_has_built_meanwhile_is_kept(others: tuple[str, ...], tmp_path: Path) -> None:
    made, directory = tmp_path / "made", tmp_path / "kept"
    made.mkdir()
    (made / "ours").touch()
    for each in others:
        directory.mkdir()
        (directory / each).touch()
    deepspeed_libraries.keep(made, directory)
    assert [each.name for each in directory.iterdir()] == [*(others or ("ours",))]


def test_libraries_that_cannot_be_kept_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        deepspeed_libraries.keep(tmp_path / "made", tmp_path / "kept")
