"""Stores GPU measurements pair by pair in a folder, so that an interrupted run can be continued.

``pairs.jsonl`` has a line for each machine and for each pair, with its measurement; ``fixtures.zip`` the allocator
requests of some pairs (bench/gpu_snapshot.py).
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from gpu_pairs import Pair
from gpu_score import Result
from gpu_table import Machine

PAIRS_FILE, FIXTURES_FILE = "pairs.jsonl", "fixtures.zip"


class Results:
    """The machines and their measurements; in memory only without a folder."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self.machines: list[Machine] = []
        self.of_pairs: dict[Pair, Result] = {}
        path = folder / PAIRS_FILE if folder else None
        written = path.read_text(encoding="utf-8") if path and path.exists() else ""
        for line in written.splitlines():
            with suppress(json.JSONDecodeError):  # a process that was killed while writing
                self._read(json.loads(line))
        if path and written and not written.endswith("\n"):
            with path.open("a", encoding="utf-8") as file:
                file.write("\n")

    def begin(self, machine: Machine) -> None:
        """Start measuring on this machine. A later one may have another driver, but not another GPU."""
        for each in self.machines[:1]:
            if machine.product != each.product:
                raise ValueError(
                    f"{self.folder} is of {each.product}, and this is {machine.product}: name another folder"
                )
        if machine not in self.machines:
            self.machines.append(machine)
            self._write(machine._asdict())

    def add(self, result: Result) -> None:
        """Store a pair's measurement."""
        self.of_pairs[result.pair] = result
        self._write({**result._asdict(), "pair": result.pair._asdict()})

    def add_fixture(self, fixture: Path) -> None:
        """Store a fixture."""
        if self.folder is not None:
            with ZipFile(self.folder / FIXTURES_FILE, "a") as archive:  # gzip has compressed it
                if fixture.name not in archive.namelist():
                    archive.write(fixture, fixture.name)

    def _read(self, line: dict[str, Any]) -> None:
        if "pair" not in line:
            self.machines.append(Machine(**line))
            return
        result = Result(**{**line, "pair": Pair(**line["pair"])})
        self.of_pairs[result.pair] = result

    def _write(self, line: dict[str, Any]) -> None:
        if self.folder is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / PAIRS_FILE).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
