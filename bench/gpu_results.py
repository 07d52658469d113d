"""Stores GPU measurements pair by pair in a folder, so that an interrupted run can be continued.

``pairs.jsonl`` has a line for each machine, and after it one for each pair that was measured on it;
``fixtures.jsonl`` one for the allocator's requests of some pairs (bench/gpu_snapshot.py), compressed. Both are only
ever appended to: a process that is killed loses the line that it was writing, and none before it. GPUs of several kinds
share them, so that there is never a third.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpu_pairs import Pair
from gpu_score import Result
from gpu_table import Machine

PAIRS_FILE, FIXTURES_FILE = "pairs.jsonl", "fixtures.jsonl"
# A file that is too large for the way back would take every fixture with it.
_MOST_FIXTURES_BYTES = 15 << 20


class Results:
    """The measurements on each kind of GPU; in memory only without a folder.

    Machines and pairs are those of one ``product``: the GPU that is measured on, or was at last.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._machines: list[Machine] = []
        self._of_products: dict[str | None, dict[Pair, Result]] = {}
        self.product: str | None = None
        path = folder / PAIRS_FILE if folder else None
        written = path.read_text(encoding="utf-8") if path and path.exists() else ""
        for line in written.splitlines():
            with suppress(json.JSONDecodeError):  # a process that was killed while writing
                self._read(json.loads(line))

    @property
    def products(self) -> list[str]:
        """The kinds of GPU, in the order of their first measurements."""
        return list(dict.fromkeys(each.product for each in self._machines))

    @property
    def machines(self) -> list[Machine]:
        """The machines with this GPU, each once; their drivers and libraries may differ."""
        return list(dict.fromkeys(each for each in self._machines if each.product == self.product))

    @property
    def of_pairs(self) -> dict[Pair, Result]:
        """The last measurement of each pair."""
        return self._of_products.setdefault(self.product, {})

    def begin(self, machine: Machine) -> None:
        """Start measuring on this machine."""
        is_another = self._machines[-1:] != [machine]
        self._go_on(machine)
        if is_another:
            self._write(PAIRS_FILE, machine._asdict())

    def add(self, result: Result) -> None:
        """Store a pair's measurement."""
        self.of_pairs[result.pair] = result
        self._write(PAIRS_FILE, {**result._asdict(), "pair": result.pair._asdict()})

    def add_fixture(self, fixture: Path) -> bool:
        """Store a fixture if their file has room for it; a later one of its name replaces it when they are unpacked."""
        path = self.folder / FIXTURES_FILE if self.folder else None
        name = "-".join([*filter(None, [re.sub(r"\W+", "-", self.product or "")]), fixture.name])
        line = {"name": name, "gz": b64encode(fixture.read_bytes()).decode("ascii")}
        if path and path.exists() and path.stat().st_size + len(line["gz"]) > _MOST_FIXTURES_BYTES:
            return False
        self._write(FIXTURES_FILE, line)
        return True

    def _go_on(self, machine: Machine) -> None:
        self._machines.append(machine)
        self.product = machine.product

    def _read(self, line: dict[str, Any]) -> None:
        if "pair" not in line:
            self._go_on(Machine(**line))
            return
        result = Result(**{**line, "pair": Pair(**line["pair"])})
        self.of_pairs[result.pair] = result

    def _write(self, name: str, line: dict[str, Any]) -> None:
        if self.folder is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / name).open("ab+") as file:
            # The last line of a process that was killed as it wrote has no end.
            is_cut_off = file.seek(0, 2) and file.seek(-1, 2) >= 0 and file.read(1) != b"\n"
            file.write(f"{chr(10) if is_cut_off else ''}{json.dumps(line)}\n".encode())
