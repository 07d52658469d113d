"""Loaded by every Python that a command on the emulated GPU starts: follows values there, too, once torch is imported.

Python imports a module of this name at its start. The next one on the path is run as if this one were not there. Python
3.6 must be able to read this: a command may start older ones, which are left alone.
"""

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

_HERE = Path(__file__).absolute().parent
_RUNNER, _ROOT = _HERE.parents[1], _HERE.parents[2]


def _run_next() -> None:
    """Run the sitecustomize behind this one; those before it have run this one, and would do so again."""
    places = [Path(each).absolute() for each in sys.path]
    behind = sys.path[places.index(_HERE) + 1 :] if _HERE in places else []
    spec = PathFinder.find_spec("sitecustomize", behind)
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _follow_values() -> None:
    if sys.version_info < (3, 10) or "MEMTUNE_EMULATED_GPU" not in os.environ:
        return
    # By its path: the process may have a runner of its own, which comes first.
    spec = spec_from_file_location("memtune_import_watch", str(_RUNNER / "rank" / "imports.py"))
    assert spec is not None
    assert spec.loader is not None
    imports = module_from_spec(spec)
    spec.loader.exec_module(imports)

    def begin(torch: object) -> None:
        if _ROOT not in map(Path, sys.path):
            sys.path.append(str(_ROOT))
        from memtune_runner.emulated.process import follow_values

        follow_values(torch)

    watch = imports.ImportWatch()
    watch.when_imported("torch", begin)
    watch.install()


try:
    _run_next()
finally:
    _follow_values()
