"""The ranks of a run: their numbers, and the files in which they leave reports for their node's launcher."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from memtune.plans.knobs import Sharding
from memtune.wire import environment
from memtune.wire.report import Report, read_report
from memtune.wire.report_checks import ReportError
from memtune_runner.rank.settings import Settings

# The variables by which torch detects that torchrun started a process.
_OF_TORCHRUN = ("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID")
_hidden: dict[str, str] = {}  # what hide_launcher removed from this process


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
        """Read the rank from ``variables`` (os.environ), under the names that torchrun uses."""
        return cls(
            rank=int(variables.get("RANK", 0)),
            local_rank=int(variables.get("LOCAL_RANK", 0)),
            world=int(variables.get("WORLD_SIZE", 1)),
            local_world=int(variables.get("LOCAL_WORLD_SIZE", 1)),
            node_rank=int(variables.get("GROUP_RANK", 0)),
        )

    def variables(self) -> dict[str, str]:
        """Return the rank as variables, including torchrun's aliases."""
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
    """Return all ranks of one node."""
    first = node_rank * local_world
    return [Rank(first + local, local, nodes * local_world, local_world, node_rank) for local in range(local_world)]


def hide_launcher(settings: Settings, variables: MutableMapping[str, str]) -> None:
    """Remove torchrun's variables if a single rank runs a script that is started without a launcher.

    Many scripts take RANK as the order to use DistributedDataParallel and a GPU per rank. Integrations and the plans of
    DeepSpeed and FSDP need a process group even for one rank.
    """
    is_plain = settings.integration == "env" and settings.plan.sharding is Sharding.DDP
    if settings.world == 1 and is_plain and not variables.get(environment.LAUNCHED):
        for name in [*Rank().variables(), "MASTER_ADDR", "MASTER_PORT", *_OF_TORCHRUN]:
            if name in variables:
                _hidden[name] = variables.pop(name)


def show_launcher(variables: MutableMapping[str, str]) -> None:
    """Restore what ``hide_launcher`` removed: the script does call a launcher."""
    variables.update(_hidden)


def own_directory(variables: Mapping[str, str]) -> Path | None:
    """Return where this process leaves its rank's report; None if no launcher waits for one."""
    directory = variables.get(environment.RANK_DIRECTORY)
    return Path(directory) if directory else None


def whole(report: Report) -> str:
    """Return the complete report as one line of ASCII."""
    return json.dumps(report.to_json(), allow_nan=False, separators=(",", ":"))


def report_path(directory: Path, rank: Rank) -> Path:
    """Return the file with a rank's report."""
    return directory / f"report-{rank.rank}.json"


def write_rank_report(directory: Path, rank: Rank, report: Report) -> None:
    """Write a rank's report atomically: the launcher may read it at any moment."""
    path = report_path(directory, rank)
    path.parent.mkdir(exist_ok=True)
    unfinished = path.with_suffix(f".{os.getpid()}")
    unfinished.write_text(whole(report), encoding="ascii")
    unfinished.replace(path)


@contextmanager
def leaving_a_report(directory: Path | None, rank: Rank) -> Iterator[None]:
    """Mark that a worker runs. The mark stays if Python does not end it, as with os._exit."""
    if directory is None:
        yield
        return
    mark = directory / _mark_of(rank)
    mark.touch()
    try:
        yield
    finally:
        mark.unlink(missing_ok=True)


def leaves_no_report(directory: Path, rank: Rank) -> bool:
    """Whether a worker of this rank, or below its program, has left its mark."""
    name = _mark_of(rank)
    return (directory / name).exists() or any(directory.glob(f"*/{name}"))


def _mark_of(rank: Rank) -> str:
    return f"running-{rank.rank}"


def read_rank_reports(directory: Path, rank: Rank) -> tuple[Report, ...]:
    """Return all reports of a rank: the worker's own and those of Python processes below a program.

    Each of those has its own directory, so that none overwrites what another measured. The newest comes last.
    """
    name = report_path(directory, rank).name
    paths = (path for path in [directory / name, *directory.glob(f"*/{name}")] if path.exists())
    found = map(_read, sorted(paths, key=lambda path: path.stat().st_mtime_ns))
    return tuple(report for report in found if report is not None)


def _read(path: Path) -> Report | None:
    try:
        return read_report(path.read_bytes())
    except (OSError, ReportError):
        return None
