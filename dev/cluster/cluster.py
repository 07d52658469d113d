"""The steps of `up` and `down`."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import IO

from dev.cluster import binaries, builds, cgroups, images, machine, network, packages
from dev.cluster.builds import OURS
from dev.cluster.certificates import make_certificates
from dev.cluster.disk import Need
from dev.cluster.layout import (
    CACHE,
    COMMAND_LOCK,
    KUBECONFIG,
    LOGS,
    NODE_COUNT,
    STATE,
    STATUS,
    SUPERVISOR_LOCK,
    VOLUMES,
    Node,
    nodes,
)
from dev.cluster.monitoring import lifecycle, page
from dev.cluster.node import process_one, write_node_settings
from dev.cluster.readiness import wait_until_ready
from dev.cluster.shell import BrokenStateError, ClusterError, end_bound, say, write_new
from dev.cluster.state import current_nodes, monitoring_problems, problems, supervisor_pid
from dev.cluster.supervisor import dead_parts, is_alive, leave_running, part_pids
from dev.cluster.versions import BASE_IMAGE, BUILD_PACKAGES, KUBERNETES, RUNTIME_PACKAGES


@contextmanager
def alone() -> Iterator[None]:
    """Lock: only one `up`, `down` or `load` at a time, and so only one build."""
    with COMMAND_LOCK.open("a+") as lock:
        while not _locked(lock):
            lock.seek(0)
            if holder := lock.read().strip():
                raise ClusterError(f"another devcluster command is at work (process {holder}): wait until it has ended")
            time.sleep(0.05)  # it has just started and is about to write its id
        lock.write(str(os.getpid()))
        lock.flush()
        os.set_inheritable(lock.fileno(), True)
        yield
        # The id stays after an interruption: an installation continues and keeps the lock.
        lock.truncate(0)


def _locked(lock: IO[str]) -> bool:
    """Try to take the lock, and clear what a killed command wrote."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    lock.truncate(0)
    return True


def up(asked: int | None, ahead: Sequence[str] = ()) -> None:
    """Start the cluster unless it is up; ``ahead`` names what is needed next: MemTune's images, the dashboards page."""
    ours = [each for each in ahead if each in OURS]
    work: list[Callable[[], None]] = [partial(_build_images, ours)]
    work += [_build_page] if "page" in ahead else []
    if STATE.exists() and supervisor_pid() is None:
        asked = _end_dead(asked)
    if STATE.exists():
        _reuse(asked)
        _at_once(work)
        return
    count = asked or 1
    _remove_unfinished()
    machine.check_before_starting(_needs(ours))
    _prepare(work)
    machine.check_before_starting()  # again: minutes may have passed
    network.check_subnets_are_free()
    say(f"starting Kubernetes {KUBERNETES} with {count} node{'s' if count > 1 else ''}")
    _start(nodes(count))
    wait_until_ready(nodes(count))
    say(f"ready; export KUBECONFIG={KUBECONFIG}")


def _end_dead(asked: int | None) -> int | None:
    """Remove an unusable cluster after a power cut or an interrupted `up`; return its number of nodes."""
    say("the last cluster is dead; ending what is left of it, and starting a new one\n" + "\n".join(_found_dead()))
    with suppress(BrokenStateError):
        asked = asked or len(current_nodes())
    down()
    return asked


def _found_dead() -> list[str]:
    try:
        return problems()
    except BrokenStateError:
        return ["its files are broken, as a power cut leaves them, and do not say more"]


def _reuse(asked: int | None) -> None:
    running = len(current_nodes())
    if asked not in (None, running):
        raise ClusterError(
            f"a cluster with {running} node(s) is up, not {asked}: run `python3 -m dev.cluster down` first"
        )
    if found := problems():
        _repair(found)
    if monitoring_problems():
        lifecycle.start()
    wait_until_ready(current_nodes())
    say(f"already up; export KUBECONFIG={KUBECONFIG}")


def _repair(found: list[str], seconds: float = 30) -> None:
    """Restart dead parts through their supervisors; a node restarts with its disk unchanged, as after a power cut."""
    say("starting anew what is dead:\n" + "\n".join(found))
    for node in current_nodes():
        if node.name not in part_pids(STATUS):
            # The last status of the dead node's supervisor.
            (node.settings / "status.json").unlink(missing_ok=True)
        elif dead_parts(node.settings / "status.json", node.log):
            os.kill(process_one(node), signal.SIGHUP)
    if (supervisor := supervisor_pid()) is not None:
        os.kill(supervisor, signal.SIGHUP)
    deadline = time.monotonic() + seconds
    while still := problems():
        if time.monotonic() > deadline:
            raise ClusterError(
                "the cluster stays half dead; run `python3 -m dev.cluster down`, then `up` again\n" + "\n".join(still)
            )
        time.sleep(0.2)


def _needs(ours: Sequence[str]) -> list[Need]:
    """The disk space that builds need."""
    first = Need(CACHE, machine.BUILD_BYTES + machine.BASE_IMAGE_BYTES, "building Kubernetes and the base image")
    return [*([] if binaries.are_built() else [first]), *builds.needs(ours)]


def _prepare(work: Sequence[Callable[[], None]]) -> None:
    needed = dict(RUNTIME_PACKAGES)
    if not binaries.are_built():
        needed |= BUILD_PACKAGES
    packages.provide(needed)
    _at_once([*work, _build_kubernetes])


def _at_once(work: Sequence[Callable[[], None]]) -> None:
    """Run the work in parallel: compilers use the cores while the rest waits for disk and network."""
    with ThreadPoolExecutor() as pool:
        try:
            for build in [pool.submit(build) for build in work]:
                build.result()
        except KeyboardInterrupt:
            end_bound()
            raise


def _build_kubernetes() -> None:
    if not binaries.are_built():
        say(f"building Kubernetes {KUBERNETES} (once, some minutes; log: {CACHE / 'build.log'})")
        binaries.build()


def _build_page() -> None:
    page.provide()
    page.build()


def _build_images(ours: Sequence[str]) -> None:
    images.base_archive()
    for image in ours:
        say(f"building the image of {image} (log: {CACHE / f'{image}-image.log'})")
        images.build(image)


def _start(wanted: tuple[Node, ...]) -> None:
    LOGS.mkdir(parents=True)
    write_new(NODE_COUNT, str(len(wanted)))
    machine.remember_sysctls()
    machine.load_modules()
    make_certificates(wanted)
    network.make_network(wanted)
    for node in wanted:
        cgroups.make(node)
        write_node_settings(node)
    leave_running("dev.cluster.main_supervisor", str(len(wanted)), log=LOGS / "supervisor.log", lock=SUPERVISOR_LOCK)


def down() -> None:
    if not STATE.exists():
        say("no cluster is up")
    lifecycle.stop()
    pid = supervisor_pid()
    if pid is not None:
        os.kill(pid, signal.SIGKILL)
    _wait_until_dead()
    if shutil.which("ip") is not None:
        network.remove_network()
    cgroups.remove()
    machine.restore_sysctls()
    machine.unload_modules()
    shutil.rmtree(VOLUMES, ignore_errors=True)
    if STATE.exists():
        shutil.rmtree(STATE)
        say("the cluster is gone")
    packages.let_services_start()
    _remove_unfinished()


def _remove_unfinished() -> None:
    """Remove what killed builds left."""
    binaries.remove_unfinished()
    images.remove_unfinished()
    if shutil.which("buildah") is not None:
        builds.remove_unfinished(BASE_IMAGE)


def _wait_until_dead(seconds: float = 30) -> None:
    """Wait while the kernel ends the parts of a dead supervisor, which takes a moment for a node full of pods."""
    pids = part_pids(STATUS).values()
    deadline = time.monotonic() + seconds
    while supervisor_pid() is not None or cgroups.are_busy() or any(is_alive(pid) for pid in pids):
        if time.monotonic() > deadline:
            raise ClusterError(f"processes of the cluster are still there {seconds:.0f} s after they were killed")
        time.sleep(0.1)
