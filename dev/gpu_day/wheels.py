"""Unpacks the prepared wheels that this Python needs, without pip, which may be missing."""

from __future__ import annotations

import platform
import re
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from dev.gpu_day.places import PREPARED, PYTHONS


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
            path, name, version, frozenset(pythons.split(".")), frozenset(abis.split(".")), tuple(platforms.split("."))
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
    """Unpack packages that this Python lacks or has older; return the directory and a message per missing one."""
    chosen: list[Wheel] = []
    brought = sorted(wheels.glob("*.whl"))
    refused: list[str] = []
    if not brought:
        refused.append(
            f"there are no wheels in {wheels}: what this Python lacks is missing; run dev/gpu-day prepare where there "
            f"is a network, and bring {PREPARED} along"
        )
    for name, found in _by_name(brought):
        if _is_there(name, found[0].version):
            continue
        suiting = [each for each in found if each.suits(sys.version_info[:2], platform.machine())]
        chosen += suiting[:1]
        if not suiting:
            version = f"{sys.version_info[0]}.{sys.version_info[1]}"
            advice = (
                f"bring it along by dev/gpu-day prepare --python {version}"
                if version in PYTHONS
                else f"use Python {PYTHONS[0]} to {PYTHONS[-1]}"
            )
            refused.append(
                f"{name} {found[0].version} is not here, and no wheel of it is for Python {version} on "
                f"{platform.machine()}: {advice}"
            )
    try:
        site.mkdir(parents=True, exist_ok=True)
        _extract(chosen, site)
    except OSError:  # read-only checkout
        site = Path(tempfile.mkdtemp(prefix="gpu-day-"))
        _extract(chosen, site)
    return site, refused


def _by_name(paths: Iterable[Path]) -> Iterator[tuple[str, list[Wheel]]]:
    named: dict[str, list[Wheel]] = {}
    for path in paths:
        wheel = Wheel.of(path)
        named.setdefault(wheel.name, []).append(wheel)
    yield from named.items()


def _is_there(name: str, version: str) -> bool:
    try:
        return _numbers(metadata.version(name)) >= _numbers(version)
    except metadata.PackageNotFoundError:
        return False


def _numbers(version: str) -> tuple[int, ...]:
    release = re.match(r"[\d.]+", version)
    return tuple(int(each) for each in release[0].split(".") if each) if release else ()


def _extract(wheels: Iterable[Wheel], site: Path) -> None:
    for wheel in wheels:
        with zipfile.ZipFile(wheel.path) as archive:
            archive.extractall(site)
