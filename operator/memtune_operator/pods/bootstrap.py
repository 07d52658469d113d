"""How the runner starts in a container: one line of Python, which needs nothing beyond the image's own Python."""

from __future__ import annotations

WORK_DIRECTORY = "/memtune"
RUNNER_DIRECTORY = f"{WORK_DIRECTORY}/runner"
# `python -m memtune_runner`, with the runner put before what PYTHONPATH holds inside the image. Setting PYTHONPATH on
# the container would replace the image's own, which cannot be seen from outside, and the user's imports would break.
BOOTSTRAP = (
    "import os,sys;"
    f"os.environ['PYTHONPATH']=os.pathsep.join(filter(None,['{RUNNER_DIRECTORY}',os.environ.get('PYTHONPATH')]));"
    "os.execv(sys.executable,[sys.executable,'-m','memtune_runner',*sys.argv[1:]])"
)
