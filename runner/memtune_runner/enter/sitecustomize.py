"""Loaded by every Python process that the user's program starts; installs the hooks where a rank's script begins.

Only below a command that is not Python, as a shell: a script itself is started by run_worker.py.
Python imports a module of this name at startup. If the image has its own, it runs as well. Must stay readable for
Python 3.6: a program may start older versions, which are left alone.
"""

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_ROOT = str(_HERE.parents[1])


def _run_own() -> None:
    """Run the sitecustomize behind this directory; one before it has run this one, and would do so again."""
    places = [Path(each).resolve() for each in sys.path]
    behind = sys.path[places.index(_HERE) + 1 :] if _HERE in places else sys.path
    spec = PathFinder.find_spec("sitecustomize", behind)
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _enter() -> None:
    if sys.version_info < (3, 10) or "MEMTUNE_HOOKED" in os.environ or "MEMTUNE_RANK_DIRECTORY" not in os.environ:
        return
    if _ROOT not in sys.path:
        sys.path.insert(0, _ROOT)
    from memtune_runner.enter_program import take_place

    take_place(sys.orig_argv, os.environ)


try:
    _run_own()
finally:
    _enter()
