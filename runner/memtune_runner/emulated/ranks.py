"""How many ranks there are: on a node, and by the command-line options of a launcher."""

from __future__ import annotations

from collections.abc import Sequence

from memtune_runner.command.command import Command
from memtune_runner.emulated.errors import EmulationError

# More ranks than this are on several nodes.
GPUS_PER_NODE = 8
# Pairs of the options that count processes and nodes.
_OPTIONS = {
    "--nproc-per-node": "--nnodes",
    "--num-gpus": "--num-nodes",
    "--num-processes": "",  # of all nodes together
}


def of_command(command: Command, words: Sequence[str]) -> int:
    """Return the ranks that a command's launcher would start; 1 without a launcher or a number."""
    before = words[: list(words).index(command.target)]
    options = _options(before)
    for processes, nodes in _OPTIONS.items():
        if processes in options:
            return _count(processes, options[processes]) * _count(nodes, options.get(nodes, "1"))
    return 1


def _options(words: Sequence[str]) -> dict[str, str]:
    found = {}
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name.startswith("--"):
            found[name.replace("_", "-")] = value if equals else following
    return found


def _count(option: str, value: str) -> int:
    if not value.isdecimal() or int(value) < 1:
        raise EmulationError(f"{option} {value} does not say how many ranks there are; give --ranks")
    return int(value)
