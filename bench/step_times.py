"""How the durations of a training's steps differ, as others published them: bench/data/step_times.csv."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path
from random import Random
from statistics import median

DATA = Path(__file__).parent / "data" / "step_times.csv"


@cache
def recordings(path: Path = DATA) -> tuple[tuple[float, ...], ...]:
    """The steps of each recorded training, as multiples of their median."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = [[float(each) for each in row["milliseconds"].split()] for row in csv.DictReader(file)]
    return tuple(tuple(each / median(row) for each in row) for row in rows)


def durations(random: Random, count: int) -> list[float]:
    """The durations of so many steps in a row, somewhere in one recording, as multiples of its median."""
    row = random.choice(recordings())
    first = random.randrange(len(row))
    # Behind the last step comes the first again, so that each step is as likely as any other.
    return [row[(first + place) % len(row)] for place in range(count)]
