"""How many ranks there are: on a node, and by the command-line options of a launcher."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from memtune_runner.command.command import Command
from memtune_runner.emulated.errors import EmulationError

# More ranks than this are on several nodes.
GPUS_PER_NODE = 8
# As many as torch knows in a process.
MOST_GPUS = 120
# Pairs of the options that count processes and nodes.
_OPTIONS = {
    "--nproc-per-node": "--nnodes",
    "--num-gpus": "--num-nodes",
    "--num-processes": "",  # of all nodes together
}


class RankPosition(NamedTuple):
    """The rank that the process is, and how many there are."""

    number: int
    ranks: int
    of_node: int

    @property
    def local(self) -> int:
        """Its number on its node."""
        return self.number % self.of_node

    def variables(self) -> dict[str, str]:
        """Return the variables that a launcher would set."""
        return {
            "RANK": str(self.number), "LOCAL_RANK": str(self.local), "GROUP_RANK": str(self.number // self.of_node),
            "WORLD_SIZE": str(self.ranks), "LOCAL_WORLD_SIZE": str(self.of_node),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500",
        }  # fmt: skip


def of_node(command: Command, words: Sequence[str], ranks: int) -> int:
    """Return how many ranks each node has: what the launcher says of a node, if that divides all."""
    options = _options(words[: list(words).index(command.target)])
    said = next((options[name] for name, nodes in _OPTIONS.items() if nodes and name in options), "")
    if said.isdecimal() and int(said) and ranks % int(said) == 0:
        return int(said)
    return min(ranks, GPUS_PER_NODE)


def named_gpus(visible: str) -> int:
    """Return how many GPUs a node must have for each number of CUDA_VISIBLE_DEVICES to be one of them."""
    return max((int(each) + 1 for each in visible.split(",") if each.strip().isdecimal()), default=0)


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
    for word, following in zip(words, [*words, ""][1:], strict=True):
        name, equals, value = word.partition("=")
        if name.startswith("--"):
            found[name.replace("_", "-")] = value if equals else following
    return found


def _count(option: str, value: str) -> int:
    if not value.isdecimal() or int(value) < 1:
        raise EmulationError(f"{option} {value} does not say how many ranks there are; give --ranks")
    return int(value)
