"""Unpacks the prepared wheels that this Python needs, without pip, which may be missing."""

from __future__ import annotations

import platform
import re
import shutil
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from dev.gpu_day.places import PREPARED, PYTHONS

_PREPARED_FOR = "x86_64"  # prepare fetches wheels for no other machine


class Wheel(NamedTuple):
    """The parts of a wheel's file name."""

    path: Path
    name: str
    version: str
    pythons: frozenset[str]
    abis: frozenset[str]
    platforms: tuple[str, ...]

    @classmethod
    def of(cls, path: Path) -> Wheel:
        """Parse NAME-VERSION-PYTHONS-ABIS-PLATFORMS.whl."""
        name, version, *_, pythons, abis, platforms = path.stem.split("-")
        return cls(
            path,
            _normal(name),
            version,
            frozenset(pythons.split(".")),
            frozenset(abis.split(".")),
            tuple(platforms.split(".")),
        )

    def suits(self, python: tuple[int, int], machine: str) -> bool:
        """Whether it works with this CPython version and machine."""
        if not any(each == "any" or each.endswith(f"_{machine}") for each in self.platforms):
            return False
        if "abi3" in self.abis:
            minors = [int(each[3:]) for each in self.pythons if re.fullmatch(r"cp3\d+", each)]
            return python[0] == 3 and any(minor <= python[1] for minor in minors)
        return "py3" in self.pythons or f"cp{python[0]}{python[1]}" in self.pythons


def unpack(wheels: Path, site: Path) -> tuple[Path, list[str]]:
    """Unpack packages that this Python lacks or has older; return the directory and a message per refused wheel."""
    brought = sorted(wheels.glob("*.whl"))
    refused: list[str] = []
    if not brought:
        refused.append(
            f"there are no wheels in {wheels}: what this Python lacks is missing; run dev/gpu-day prepare where there "
            f"is a network, and bring {PREPARED} along"
        )
    # Packages that another Python lacked would shadow those of this one.
    shutil.rmtree(site, ignore_errors=True)
    chosen: dict[str, Wheel] = {}
    for name, found in _by_name(brought, refused).items():
        here = version_of(name)
        if here is not None and _numbers(here) >= _numbers(found[0].version):
            continue
        suiting = [each for each in found if each.suits(sys.version_info[:2], platform.machine())]
        if not suiting:
            refused.append(_unsuited(found[0]))
        elif problem := _problem(suiting[0].path):
            refused.append(f"{suiting[0].path.name} cannot be read, and is left out: {problem}; bring it along anew")
        else:
            chosen[name] = suiting[0]
    refused += _without_broken_pins(chosen, [Wheel.of(each).name for each in brought if _is_named(each)])
    try:
        site.mkdir(parents=True, exist_ok=True)
        _extract(chosen.values(), site)
    except OSError:  # read-only checkout
        site = Path(tempfile.mkdtemp(prefix="gpu-day-"))
        _extract(chosen.values(), site)
    return site, refused


def version_of(name: str, path: Sequence[str] | None = None) -> str | None:
    """The version of an installed package; None if it has none, as where its files are broken."""
    found = _installed(name, sys.path if path is None else path)
    return found.version if found else None


def _installed(name: str, path: Sequence[str]) -> metadata.Distribution | None:
    for each in metadata.distributions(name=name, path=list(path)):
        with suppress(OSError, KeyError, TypeError, ValueError):
            if each.metadata["Version"]:
                return each
    return None


def _by_name(paths: Iterable[Path], refused: list[str]) -> dict[str, list[Wheel]]:
    named: dict[str, list[Wheel]] = {}
    for path in paths:
        if _is_named(path):
            wheel = Wheel.of(path)
            named.setdefault(wheel.name, []).append(wheel)
        else:
            refused.append(f"{path.name} is not named as a wheel is, and is left out: remove it")
    return named


def _is_named(path: Path) -> bool:
    return path.stem.count("-") >= 4 and not path.name.startswith(".")


def _unsuited(wheel: Wheel) -> str:
    version, machine = f"{sys.version_info[0]}.{sys.version_info[1]}", platform.machine()
    advice = f"bring it along by dev/gpu-day prepare --python {version}"
    if version not in PYTHONS:
        advice = f"use Python {PYTHONS[0]} to {PYTHONS[-1]}"
    elif machine != _PREPARED_FOR:
        advice = "install it there"
    here = version_of(wheel.name)
    problem = f"{wheel.name} {wheel.version} is not here" + (f", but {here}" if here else "")
    return f"{problem}, and no wheel of it is for Python {version} on {machine}: {advice}"


def _problem(path: Path) -> str | None:
    """Why a wheel cannot be unpacked."""
    try:
        with zipfile.ZipFile(path) as archive:
            broken = archive.testzip()
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError) as error:
        return str(error) or type(error).__name__
    return f"{broken} is broken" if broken else None


def _without_broken_pins(chosen: dict[str, Wheel], brought: Iterable[str]) -> list[str]:
    """Leave out wheels that would separate two packages of which one pins the other's version, and report them.

    Pydantic and its core, for example, are unpacked together or not at all: either alone would shadow this Python's
    own.
    """
    refused: list[str] = []
    while True:
        found = _broken_pin(chosen, set(brought))
        if found is None:
            return refused
        name, reason = found
        wheel, here = chosen.pop(name), version_of(name)
        kept = f"{here} stays in use" if here else "it is missing"
        refused.append(f"{name} {wheel.version} is left out, and {kept}: {reason}")


def _broken_pin(chosen: Mapping[str, Wheel], brought: Iterable[str]) -> tuple[str, str] | None:
    """A chosen wheel that does not go with a pin, of itself or of what is installed beside it, and why."""
    for name, wheel in chosen.items():
        for other, version in _pins(_requirements(wheel.path)):
            there = chosen[other].version if other in chosen else version_of(other)
            if there != version:
                return name, f"it needs {other} {version}, and {f'{there} is' if there else 'none is'} here"
    for other in brought:
        here = None if other in chosen else _installed(other, sys.path)
        if here is None:
            continue
        for name, version in _pins(here.requires or ()):
            if name in chosen and chosen[name].version != version:
                return name, f"{other} {here.version}, which is here, needs {version}"
    return None


def _requirements(path: Path) -> list[str]:
    with zipfile.ZipFile(path) as archive:
        for each in archive.namelist():
            if re.fullmatch(r"[^/]+\.dist-info/METADATA", each):
                lines = archive.read(each).decode("utf-8", "replace").splitlines()
                return [line.partition(":")[2] for line in lines if line.startswith("Requires-Dist:")]
    return []


def _pins(requirements: Iterable[str]) -> list[tuple[str, str]]:
    """The packages of which exactly one version is required under every condition, named as wheels are."""
    found = (re.fullmatch(r"\s*([\w.-]+)\s*\(?==\s*([\w.+!]+)\)?\s*", each) for each in requirements)
    return [(_normal(each[1]), each[2]) for each in found if each]


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "_", name).lower()


def _numbers(version: str) -> tuple[int, ...]:
    release = re.match(r"[\d.]+", version)
    return tuple(int(each) for each in release[0].split(".") if each) if release else ()


def _extract(wheels: Iterable[Wheel], site: Path) -> None:
    for wheel in wheels:
        with zipfile.ZipFile(wheel.path) as archive:
            archive.extractall(site)
