"""A run of modded-nanogpt by its own log file, which starts with the whole script: RANKS are one, steps are few.

Run by `memtune emulate`: LOG. The repository (KellerJordan/modded-nanogpt) has the log files in records/; they are not
copied here. Tokens are zeros.
"""

from __future__ import annotations

import array
import os
import re
import runpy
import sys
import tempfile
from pathlib import Path

STEPS = 2
_HEADER, _MAGIC, _VERSION = 256, 20240520, 1
_END_OF_SCRIPT = "\n" + "=" * 100


def script_of(log: str) -> str:
    """The script, for a few steps; kernels are not tuned, which changes their speed only."""
    script = log.partition(_END_OF_SCRIPT)[0]
    for name, number in (("num_iterations", STEPS), ("cooldown_iters", 1), ("val_tokens", "8*64*1024")):
        script = re.sub(rf"({name} : int = )[\d*]+", rf"\g<1>{number}", script)
    return script.replace("coordinate_descent_tuning = True", "coordinate_descent_tuning = False")


def write_tokens(path: Path, count: int) -> None:
    """A file of zeros in the format that the script reads."""
    header = array.array("i", [_MAGIC, _VERSION, count] + [0] * (_HEADER - 3))
    with path.open("wb") as file:
        header.tofile(file)
        file.truncate(file.tell() + 2 * count)


def main() -> None:
    """Run the script where its data are."""
    log = Path(sys.argv[1]).read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        script, data = Path("train.py"), Path("data/fineweb10B")
        script.write_text(script_of(log), encoding="utf-8")
        data.mkdir(parents=True)
        Path("logs").mkdir()
        for kind in ("train", "val"):
            write_tokens(data / f"fineweb_{kind}_000001.bin", 4 * 8 * 64 * 1024)
        sys.argv = [str(script)]
        runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    main()
