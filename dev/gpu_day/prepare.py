"""Prepares a GPU day: collects wheels that a bare Python with torch lacks, and records predictions before measuring."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dev.gpu_day.places import (
    EMULATED,
    EMULATED_PYTHON,
    PREDICTIONS,
    PREPARED,
    ROOT,
    SITE,
    WHEELS,
    development_python,
    variables,
)

# The imports of the benchmark, of tests/gpu and of `memtune run`, with dependencies, beyond torch, transformers,
# accelerate and their dependencies.
_OF_PAIRS = (
    "deepspeed hjson py-cpuinfo einops tqdm packaging pydantic annotated-types typing-inspection typing-extensions "
    "pydantic-core msgpack psutil ninja torchao"
)
_OF_TESTS = "pytest pluggy iniconfig pygments"
_OF_JOBS = "optuna alembic mako colorlog sqlalchemy prometheus-client markupsafe pyyaml"
_BINARY = "pydantic-core msgpack psutil markupsafe pyyaml ninja torchao"
# Imported by pytest and alembic before Python 3.11 alone, and so in no lock of ours.
_BEFORE_3_11 = ("exceptiongroup==1.3.0", "tomli==2.2.1")
_PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64", "manylinux_2_12_x86_64")
_LIMIT_BYTES = 64 << 20
_LOCKS = ("dev.lock", "eight-bit.lock")
_PIP = (development_python(), "-m", "pip", "--quiet", "--disable-pip-version-check")


def prepare(pythons: Sequence[str], gpu: str, models: Sequence[str]) -> int:
    """Fill build/gpu-day, and check that it and the checkout can be copied.

    Old wheels are replaced when new ones are fetched. Emulated peaks of this GPU and commit are kept.
    """
    try:
        made = {"gpu": gpu, "commit": _commit(), **predictions(gpu, models)}
    except ValueError as error:
        print(f"gpu-day: {error}", file=sys.stderr)
        return 2
    try:
        _replace_wheels(pythons)
    except subprocess.CalledProcessError as error:
        print(f"gpu-day: wheels cannot be fetched: {error}; what was prepared before is unchanged", file=sys.stderr)
        return 1
    if _prepared_for() != (gpu, made["commit"]):
        shutil.rmtree(ROOT / EMULATED, ignore_errors=True)
    (ROOT / PREDICTIONS).write_text(json.dumps(made, indent=1), encoding="utf-8")
    is_emulated = _emulate(gpu, models)
    size = sum(each.stat().st_size for each in _travelling())
    print(f"gpu-day: {PREPARED} is ready; with the checkout it is {size / (1 << 20):.0f} MiB")
    if size > _LIMIT_BYTES:
        print(f"gpu-day: that is more than {_LIMIT_BYTES >> 20} MiB; remove what git does not know", file=sys.stderr)
        return 1
    return int(not is_emulated)


def predictions(gpu: str, models: Sequence[str]) -> dict[str, Any]:
    """The GPU's ``product``, and what is predicted for all ``pairs`` by formulas and traces; ValueError if unknown."""
    done = subprocess.run(
        [development_python(), "bench/gpu_predictions.py", gpu, *models],
        cwd=ROOT,
        env=variables(),
        check=True,
        stdout=subprocess.PIPE,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    if "error" in found:
        raise ValueError(found["error"])
    return dict(found)


def _emulate(gpu: str, models: Sequence[str], *options: str) -> bool:
    """Keep what every pair takes on the emulated GPU, for the table of the day; return False where that failed.

    Where `make env-emulated` was not run, the table goes without.
    """
    if not (ROOT / EMULATED_PYTHON).exists():
        print("gpu-day: the table will have no emulated peaks: make env-emulated was not run here", file=sys.stderr)
        return True
    chosen = [word for each in models for word in ("--model", each)]
    words = [development_python(), "bench/gpu_emulated.py", gpu, str(ROOT / EMULATED), *chosen, *options]
    if code := subprocess.run(words, cwd=ROOT, env=variables(), check=False).returncode:
        print(f"gpu-day: emulated peaks are missing: bench/gpu_emulated.py ended with {code}", file=sys.stderr)
    return code == 0


def _prepared_for() -> tuple[str, str] | None:
    """The GPU and the commit of what was prepared before."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        told = json.loads((ROOT / PREDICTIONS).read_text(encoding="utf-8"))
        return told["gpu"], told["commit"]
    return None


def _replace_wheels(pythons: Sequence[str]) -> None:
    new = (ROOT / WHEELS).with_name("wheels-new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    try:
        _fetch(pythons, new)
    except BaseException:
        shutil.rmtree(new)
        raise
    for each in (WHEELS, SITE):
        shutil.rmtree(ROOT / each, ignore_errors=True)
    new.rename(ROOT / WHEELS)


def _fetch(pythons: Sequence[str], into: Path) -> None:
    # DeepSpeed publishes no wheel. Without compiled operators it is pure Python, as `make env` installs it.
    build = [*_PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(into), _pinned("deepspeed")]
    subprocess.run(build, cwd=ROOT, env={**variables(), "DS_BUILD_OPS": "0"}, check=True)
    _download(pythons, into)


def _download(pythons: Sequence[str], into: Path) -> None:
    """Fetch the wheels that are published."""
    fetch = [*_PIP, "download", "--no-deps", "--only-binary=:all:", "--dest", str(into)]
    pure = ["--implementation", "py", "--abi", "none", "--platform", "any"]
    binary = _BINARY.split()
    names = [each for each in f"{_OF_PAIRS} {_OF_TESTS} {_OF_JOBS}".split() if each not in ("deepspeed", *binary)]
    subprocess.run([*fetch, *pure, *map(_pinned, names), *_BEFORE_3_11], cwd=ROOT, check=True)
    platforms = [word for each in _PLATFORMS for word in ("--platform", each)]
    for python in pythons:
        options = ["--implementation", "cp", "--python-version", python, *platforms]
        subprocess.run([*fetch, *options, *map(_pinned, binary)], cwd=ROOT, check=True)


def _pinned(name: str) -> str:
    """The requirement of a package as the lock files of the development environment pin it."""
    for lock in _LOCKS:
        text = (ROOT / "tools" / lock).read_text(encoding="utf-8")
        if found := re.search(rf"^({re.escape(name)}==\S+)", text, re.MULTILINE):
            return found[1]
    raise ValueError(f"none of tools/{' and tools/'.join(_LOCKS)} has {name}")


def _travelling() -> Iterator[Path]:
    known = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.splitlines()  # fmt: skip
    yield from (ROOT / each for each in known if (ROOT / each).is_file())
    yield from (each for each in (ROOT / PREPARED).rglob("*") if each.is_file())


def _commit() -> str:
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.strip()
