"""The ranks of a run: who they are, and where each leaves its report for the launcher of its node."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from memtune.plans.knobs import Sharding
from memtune.wire import environment
from memtune.wire.report import Report, read_report
from memtune.wire.report_checks import ReportError
from memtune_runner.rank.report import whole
from memtune_runner.rank.settings import Settings

# What torch asks for to learn whether torchrun has started a process.
_OF_TORCHRUN = ("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID")
_hidden: dict[str, str] = {}  # by hide_launcher, from this process


@dataclass(frozen=True)
class Rank:
    """One worker's place in the run."""

    rank: int = 0
    local_rank: int = 0
    world: int = 1
    local_world: int = 1
    node_rank: int = 0

    @classmethod
    def read(cls, variables: Mapping[str, str]) -> Rank:
        """The rank that ``variables`` (os.environ) describe, by the names that torch's own launcher gives them."""
        return cls(
            rank=int(variables.get("RANK", 0)),
            local_rank=int(variables.get("LOCAL_RANK", 0)),
            world=int(variables.get("WORLD_SIZE", 1)),
            local_world=int(variables.get("LOCAL_WORLD_SIZE", 1)),
            node_rank=int(variables.get("GROUP_RANK", 0)),
        )

    def variables(self) -> dict[str, str]:
        """The same as variables, with the other names that torch's launcher gives to the same numbers."""
        return {
            "RANK": str(self.rank),
            "LOCAL_RANK": str(self.local_rank),
            "WORLD_SIZE": str(self.world),
            "LOCAL_WORLD_SIZE": str(self.local_world),
            "GROUP_RANK": str(self.node_rank),
            "GROUP_WORLD_SIZE": str(self.world // self.local_world),
            "ROLE_RANK": str(self.rank),
            "ROLE_WORLD_SIZE": str(self.world),
            "ROLE_NAME": "default",
        }


def of_node(node_rank: int, local_world: int, nodes: int) -> list[Rank]:
    """All ranks of one node."""
    first = node_rank * local_world
    return [Rank(first + local, local, nodes * local_world, local_world, node_rank) for local in range(local_world)]


def hide_launcher(settings: Settings, variables: MutableMapping[str, str]) -> None:
    """Take out what torchrun sets where a single rank runs a script that nobody started by a launcher.

    Many loops take RANK for the order to use DistributedDataParallel and a GPU each. The integrations and plans of
    DeepSpeed and FSDP need a process group even for one rank.
    """
    is_plain = settings.integration == "env" and settings.plan.sharding is Sharding.DDP
    if settings.world == 1 and is_plain and not variables.get(environment.LAUNCHED):
        for name in [*Rank().variables(), "MASTER_ADDR", "MASTER_PORT", *_OF_TORCHRUN]:
            if name in variables:
                _hidden[name] = variables.pop(name)


def show_launcher(variables: MutableMapping[str, str]) -> None:
    """Put back what ``hide_launcher`` took out: the script calls a launcher after all."""
    variables.update(_hidden)


def own_directory(variables: Mapping[str, str]) -> Path | None:
    """Where this process leaves its rank's report; None where no launcher waits for one."""
    directory = variables.get(environment.RANK_DIRECTORY)
    return Path(directory) if directory else None


def report_path(directory: Path, rank: Rank) -> Path:
    """The file that a rank leaves its report in."""
    return directory / f"report-{rank.rank}.json"


def write_rank_report(directory: Path, rank: Rank, report: Report) -> None:
    """Leave a rank's report, whole or not at all: the launcher may look at any moment."""
    path = report_path(directory, rank)
    path.parent.mkdir(exist_ok=True)
    unfinished = path.with_suffix(f".{os.getpid()}")
    unfinished.write_text(whole(report), encoding="ascii")
    unfinished.replace(path)


def read_rank_report(directory: Path, rank: Rank) -> Report | None:
    """The report that a worker left, None if it left none that can be read."""
    return _read(report_path(directory, rank))


def read_rank_reports(directory: Path, rank: Rank) -> tuple[Report, ...]:
    """All reports of a rank, the worker's own and those of the Python processes that a program of the user's ran.

    Each of the latter has a directory of its own, so that none of them overwrites what another has measured.
    """
    name = report_path(directory, rank).name
    found = (_read(path) for path in [directory / name, *sorted(directory.glob(f"*/{name}"))])
    return tuple(report for report in found if report is not None)


def _read(path: Path) -> Report | None:
    try:
        return read_report(path.read_bytes())
    except (OSError, ReportError):
        return None
