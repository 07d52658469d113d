"""Accuracy of the predicted `device` memory on the peaks that nvidia-smi showed for published runs.

    python bench/accuracy_device.py

`bench/data/device_peaks.csv` names rows of measured_memory.csv whose source also reports the driver's peak, in MiB and
as the mean over its GPUs. Constants are fitted on the other sources.
"""

from __future__ import annotations

import csv
import sys
from dataclasses import replace
from pathlib import Path

from accuracy import Scored, misses, score, summary, table
from accuracy_fit import predicted
from accuracy_rows import Row, read_rows

DATA = Path(__file__).parent / "data"
MIB = 1024**2


def device_rows(rows: list[Row], peaks: Path = DATA / "device_peaks.csv") -> list[Row]:
    """The rows with a known driver's peak, which becomes their truth."""
    with peaks.open(newline="", encoding="utf-8") as file:
        known = {line["id"]: float(line["nvidia_smi_mib"]) for line in csv.DictReader(file)}
    unknown = sorted(known.keys() - {row.id for row in rows})
    if unknown:
        raise ValueError(f"{peaks} names rows that are nowhere: {', '.join(unknown)}")
    found = [replace(row, metric="device", peak_bytes=round(known[row.id] * MIB)) for row in rows if row.id in known]
    return found + [row for row in rows if row.metric == "device"]


def device_scores() -> list[Scored]:
    """Every row scored with constants that never saw its source."""
    rows, _ = read_rows(DATA / "measured_memory.csv")
    wanted = device_rows(rows)
    _, constants = score(rows, leave_one_source_out=True)
    return [Scored(row, predicted(row, constants[row.source])) for row in wanted]


def main() -> int:
    """Print the table by source, the large misses and the machine-readable line."""
    scored = device_scores()
    print("\n".join(table(scored, "source", lambda row: row.source, {})), end="\n\n")
    print("\n".join(misses(scored)), end="\n\n")
    print(summary(scored))
    return 0


if __name__ == "__main__":
    sys.exit(main())
