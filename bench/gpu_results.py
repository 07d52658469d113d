"""What was measured on a GPU, kept pair by pair: a call may end before it is through, and another goes on from there.

The first line of the file is the machine, each other one a pair and what it took.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gpu_pairs import Pair
from gpu_score import Result
from gpu_table import Machine


class Results:
    """The machine, and what its pairs took; in memory alone where there is no file."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self.machine: Machine | None = None
        self.of_pairs: dict[Pair, Result] = {}
        for line in path.read_text(encoding="utf-8").splitlines() if path and path.exists() else []:
            self._read(json.loads(line))

    def begin(self, machine: Machine) -> None:
        """Measure on this machine; what another one took is not put beside it."""
        if self.machine is None:
            self.machine = machine
            self._write(machine._asdict())
        if self.machine != machine:
            raise ValueError(f"{self._path} is of {self.machine}, this is {machine}; give another file")

    def add(self, result: Result) -> None:
        """Keep what a pair took."""
        self.of_pairs[result.pair] = result
        self._write({**result._asdict(), "pair": result.pair._asdict()})

    def _read(self, line: dict[str, Any]) -> None:
        if "pair" not in line:
            self.machine = Machine(**line)
            return
        result = Result(**{**line, "pair": Pair(**line["pair"])})
        self.of_pairs[result.pair] = result

    def _write(self, line: dict[str, Any]) -> None:
        if self._path is None:
            return
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
