"""Whether a process used files of its volumes, whoever opened them and by whichever name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_SAID = """
import sys
from memtune_runner.rank.used_volumes import UsedVolumes
volumes = UsedVolumes(sys.argv[1])
volumes.watch()
exec(sys.argv[2])
print(volumes.had_part())
"""
LINKED = "import os; os.symlink('{volume}', '{elsewhere}/link'); open('{elsewhere}/link/sizes.json').close()"


def had_part(volumes: str, code: str, workdir: Path, *import_from: Path) -> bool:
    """Whether code used a volume, in a process with these directories on its path."""
    paths = os.pathsep.join([*map(str, import_from), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", _SAID, volumes, code],
        cwd=workdir,
        env={**os.environ, "PYTHONPATH": paths},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    return {"True": True, "False": False}[done.stdout.strip()]


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """A ConfigMap volume: its files are links to others in it."""
    found = tmp_path / "code"
    (found / "..data").mkdir(parents=True)
    for name, text in (("of_a_volume.py", "SIZE = 4"), ("sizes.json", "{}")):
        (found / "..data" / name).write_text(text)
        (found / name).symlink_to(Path("..data") / name)
    return found


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    found = tmp_path / "image"
    found.mkdir()
    (found / "of_the_image.py").write_text("SIZE = 4")
    return found


@pytest.mark.parametrize(
    "code",
    [
        "import of_a_volume",
        "open('{volume}/sizes.json').close()",
        "open(b'{volume}/sizes.json').close()",
        "import os; os.close(os.open('{volume}/sizes.json', os.O_RDONLY))",
        "import pathlib; pathlib.Path('{volume}/sizes.json').read_text()",
        "import os; os.chdir('{volume}'); open('sizes.json').close()",
        "import contextlib\nwith contextlib.suppress(OSError): open('{volume}/not-yet-there.json')",
        "import contextlib, ctypes\nwith contextlib.suppress(OSError): ctypes.CDLL('{volume}/ops.so')",
        LINKED,
    ],
)
def test_every_import_from_a_volume_is_seen(code: str, volume: Path, elsewhere: Path) -> None:
    told = code.format(volume=volume, elsewhere=elsewhere)
    assert had_part(f"/nowhere:{volume}/", told, elsewhere, volume)


def test_imports_before_the_watch_are_seen(volume: Path, elsewhere: Path) -> None:
    (elsewhere / "sitecustomize.py").write_text("import of_a_volume")
    assert had_part(str(volume), "pass", elsewhere, elsewhere, volume)


def test_a_file_may_be_mounted_alone(volume: Path, elsewhere: Path) -> None:
    told = f"open('{volume}/sizes.json').close()"
    assert had_part(str(volume / "sizes.json"), told, elsewhere)
    assert not had_part(str(volume / "sizes"), told, elsewhere)


@pytest.mark.parametrize(
    "code", ["import of_the_image", "open('{elsewhere}/of_the_image.py').close()", "open(0).close()"]
)
@pytest.mark.parametrize("told", ["", "{volume}"])
def test_imports_from_elsewhere_are_not_seen(code: str, told: str, volume: Path, elsewhere: Path) -> None:
    # In the volume, which Python searches first, although nothing is imported from it.
    names = {"volume": volume, "elsewhere": elsewhere}
    assert not had_part(told.format(**names), code.format(**names), volume, elsewhere)
