"""The first file of a worker's process: makes the runner importable for any Python, however it was started.

It is run by its path, so that neither -I nor -E nor a PYTHONPATH of the user's can hide the runner. Python 3.6 must be
able to read it: older versions are told so, not stumbled over.
"""

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
    from memtune_runner.worker import main

    sys.exit(main(sys.argv[1:]))
