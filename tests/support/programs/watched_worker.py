"""One worker of a run as the launcher starts it: the script in this process, watched, with its own exit code."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from memtune_runner.rank.ranks import Rank
from memtune_runner.rank.settings import read_settings
from memtune_runner.watch import watching


def main(script: str) -> None:
    """Run a script as ``python script`` would, under the watch of a rank that torch's variables name."""
    sys.path.insert(0, str(Path(script).parent))
    sys.argv = sys.argv[1:]
    with watching(read_settings(os.environ), Rank.read(os.environ)):
        runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1])
