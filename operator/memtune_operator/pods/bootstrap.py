"""The bootstrap line that starts the runner in a container with nothing but the image's Python."""

from __future__ import annotations

# The user id of MemTune's images.
IMAGE_USER = 65532
WORK_DIRECTORY = "/memtune"
RUNNER_DIRECTORY = f"{WORK_DIRECTORY}/runner"
# `python -m memtune_runner`, with the runner prepended to the image's PYTHONPATH. Setting PYTHONPATH on the container
# would replace the image's own, which is not visible from outside, and break the user's imports.
BOOTSTRAP = (
    "import os,sys;"
    f"os.environ['PYTHONPATH']=os.pathsep.join(filter(None,['{RUNNER_DIRECTORY}',os.environ.get('PYTHONPATH')]));"
    "os.execv(sys.executable,[sys.executable,'-m','memtune_runner',*sys.argv[1:]])"
)
