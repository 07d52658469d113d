"""Finds the job that `status`, `report` and `logs` name: on a cluster or in a state directory."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from memtune_cli.errors import InputError
from memtune_cli.input import cluster
from memtune_cli.input.job_view import JobView, job_view_of
from memtune_cli.input.local_job import job_view_at

_ON_A_CLUSTER = {
    "name": "NAME",
    "namespace": "-n",
    "context": "--context",
    "kubeconfig": "--kubeconfig",
    "prometheus": "--prometheus",
}


def named_job_view(arguments: argparse.Namespace) -> JobView:
    """The view of the named job."""
    directory = state_directory(arguments)
    return job_view_at(directory) if directory else asyncio.run(_on_cluster(arguments))


def state_directory(arguments: argparse.Namespace) -> Path | None:
    """The state directory of a `memtune run` job; None for a job on a cluster."""
    given = [shown for part, shown in _ON_A_CLUSTER.items() if getattr(arguments, part, None) is not None]
    if arguments.state is None:
        if arguments.name is None:
            raise InputError("give the NAME of a job on a cluster, or --state DIR for one of memtune run")
        return None
    if given:
        is_for = "is" if len(given) == 1 else "are"
        raise InputError(
            f"--state names a job of memtune run, and {' and '.join(given)} {is_for} for one on a cluster; "
            "leave out one or the other"
        )
    return Path(arguments.state)


async def _on_cluster(arguments: argparse.Namespace) -> JobView:
    async with cluster.address(arguments) as job:
        return job_view_of(await job.read())
