"""Entry point of every worker process: makes the runner importable, however Python was started.

Python runs it by its path, so that -I, -E or the user's PYTHONPATH cannot hide the runner. Must stay readable for
Python 3.6, so that older versions get a clear message.
"""

import os
import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_ROOT = str(_HERE.parents[1])

if sys.path and Path(sys.path[0]).resolve() == _HERE:
    del sys.path[0]
if _ROOT not in sys.path:
    sys.path.insert(0, _ROOT)

from memtune_runner.old_python import refuse_old_python  # noqa: E402  # it is findable only now

if __name__ == "__main__":
    refuse_old_python()
    if "MEMTUNE_EMULATED_FORKS" in os.environ:
        from memtune_runner.forks import main
    else:
        from memtune_runner.worker import main

    sys.exit(main(sys.argv[1:]))
