"""The command line of `python3 -m dev.cluster COMMAND`; `--help` lists the commands."""

from __future__ import annotations

import argparse
import errno
import os
import signal
import sys
from pathlib import Path

from dev.cluster import cluster, disk, images, machine, state
from dev.cluster.api import ApiError
from dev.cluster.builds import OURS
from dev.cluster.layout import KUBECONFIG, MOST_NODES
from dev.cluster.monitoring import dashboards, lifecycle, page, prometheus
from dev.cluster.shell import ClusterError, say

CANNOT_RUN = 3
INTERRUPTED = 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python3 -m dev.cluster", description="a real Kubernetes on a bare Debian machine"
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    up = commands.add_parser("up", help="start the cluster, building what is missing; waits until it is ready")
    numbers = range(1, MOST_NODES + 1)
    up.add_argument("--nodes", type=int, choices=numbers, help="how many nodes (default: 1, or what is up)")
    ahead = "build meanwhile what `load` and `dashboards` will need: operator, runner, page"
    up.add_argument("--build", nargs="+", choices=(*OURS, "page"), default=[], metavar="WHAT", help=ahead)
    commands.add_parser("down", help="end it and remove every trace")
    commands.add_parser("status", help="say which parts live; exit code 1 when one is dead or nothing is up")
    commands.add_parser("kubeconfig", help="print the path of the kubeconfig")
    load = commands.add_parser("load", help="put images onto every node, building our own where something has changed")
    what = "`operator`, `runner`, `base` (Debian with Python), an archive file or an image that buildah knows"
    load.add_argument("images", metavar="IMAGE", nargs="+", help=what)
    logs = commands.add_parser("logs", help="print the log of a part")
    logs.add_argument("part", metavar="PART", help="for example kube-apiserver or node-1/kubelet")
    prometheus = commands.add_parser(
        "prometheus", help="start a Prometheus that scrapes what is shipped to be scraped; prints its address"
    )
    prometheus.add_argument("--stop", action="store_true", help="end it, and the dashboards with it")
    commands.add_parser("dashboards", help="the same, and a page that draws the dashboards; prints the page's address")
    can_run = f"exit code 0 if this machine can run the cluster, {CANNOT_RUN} and the reason if it cannot"
    commands.add_parser("can-run", help=can_run)
    return parser


def main() -> int:
    arguments = _parser().parse_args()
    # SIGTERM cleans up like Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return _dispatch(arguments)
    except ClusterError as error:
        print(f"devcluster: {error}", file=sys.stderr)
    except ApiError as error:
        print(
            f"devcluster: the API server refused: {error}; `python3 -m dev.cluster status` says what is dead",
            file=sys.stderr,
        )
    except OSError as error:
        print(f"devcluster: {_sentence(error)}", file=sys.stderr)
    except KeyboardInterrupt:
        print("devcluster: interrupted; run `up` or `down` again", file=sys.stderr)
        return INTERRUPTED
    return 1


def _sentence(error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        return disk.full(Path(error.filename) if error.filename else None)
    where = f" ({error.filename})" if error.filename else ""
    return f"{error.strerror or error}{where}; `python3 -m dev.cluster status` says what is dead"


def _dispatch(arguments: argparse.Namespace) -> int:
    reason = machine.reason_it_cannot_run()
    if own := os.environ.get("MEMTUNE_KUBECONFIG"):
        return _with_other_cluster(arguments.command, Path(own))
    if arguments.command == "can-run":
        print(reason or "this machine can run the cluster")
        return CANNOT_RUN if reason else 0
    if reason:
        raise ClusterError(reason)
    if arguments.command == "status":
        return _status()
    if arguments.command == "kubeconfig":
        state.check_it_lives()
        print(KUBECONFIG)
    elif arguments.command == "logs":
        print(state.log_of(arguments.part).read_text(errors="replace"), end="")
    else:
        if arguments.command == "dashboards":
            state.check_it_lives()
            with cluster.alone():
                page.provide()
            # Takes minutes and does not touch the cluster, so it runs without the lock.
            page.build()
        with cluster.alone():
            _change(arguments)
    return 0


def _with_other_cluster(command: str, kubeconfig: Path) -> int:
    if not kubeconfig.is_file():
        raise ClusterError(f"MEMTUNE_KUBECONFIG names {kubeconfig}, and there is no such file")
    if command == "kubeconfig":
        print(kubeconfig)
    elif command in ("up", "down", "can-run"):
        print(f"MEMTUNE_KUBECONFIG is set: the cluster of {kubeconfig} is used as it is, nothing to do")
    else:
        raise ClusterError(f"`{command}` is about the cluster that `up` starts, and MEMTUNE_KUBECONFIG names another")
    return 0


def _change(arguments: argparse.Namespace) -> None:
    if arguments.command == "up":
        cluster.up(arguments.nodes, arguments.build)
    elif arguments.command == "down":
        cluster.down()
    elif arguments.command in ("prometheus", "dashboards"):
        _monitor(arguments)
    else:
        state.check_it_lives()
        for image in arguments.images:
            say(f"loading {image}")
            images.load(image, state.current_nodes())
        say("loaded")


def _monitor(arguments: argparse.Namespace) -> None:
    state.check_it_lives()
    if arguments.command == "dashboards":
        lifecycle.start()
        print(dashboards.URL)
    elif arguments.stop:
        lifecycle.stop()
    else:
        lifecycle.start()
        print(prometheus.URL)


def _status() -> int:
    state.check_it_lives()
    found = state.problems() + state.monitoring_problems()
    print("\n".join(found) or f"every part is alive; {len(state.current_nodes())} node(s)")
    return 1 if found else 0
