"""The runner's command line. Must stay readable for Python 3.6."""

import sys
from typing import TYPE_CHECKING

from memtune_runner.old_python import refuse_old_python

if TYPE_CHECKING:
    from collections.abc import Sequence

_USAGE = """usage: python -m memtune_runner launch -- COMMAND...
       python -m memtune_runner install DIRECTORY
       python -m memtune_runner trace MODULE:FACTORY ...
       python -m memtune_runner convert CHECKPOINT --plan PLAN [--world GPUS]"""


def main(words: "Sequence[str]") -> int:
    """Run a subcommand and return its exit code."""
    if list(words[:2]) == ["launch", "--"]:
        from memtune_runner.launch.main import main as launch

        return launch(words[2:])
    if list(words[:1]) == ["install"] and len(words) == 2:
        from memtune_runner.install import main as install

        return install(words[1])
    if list(words[:1]) == ["trace"]:
        from memtune_runner.trace_process.main import main as trace

        return trace(words[1:])
    if list(words[:1]) == ["emulate"]:
        from memtune_runner.emulated.main import main as emulate

        return emulate(words[1:])
    if list(words[:2]) == ["prepare-emulation", "--"]:
        from memtune_runner.emulated.job_rank import prepare

        return prepare(words[2:])
    if list(words[:1]) == ["emulated"]:
        from memtune_runner.emulated.worker import main as emulated

        return emulated(words[1:])
    if list(words[:1]) == ["convert"]:
        from memtune_runner.checkpoints.convert import main as convert

        return convert(words[1:])
    sys.stderr.write(_USAGE + "\n")
    return 2


if __name__ == "__main__":
    refuse_old_python()
    sys.exit(main(sys.argv[1:]))
