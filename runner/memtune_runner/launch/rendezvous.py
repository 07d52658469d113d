"""How the launchers of several nodes coordinate: rendezvous, first failure, loss of a node, and shutdown."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, NamedTuple, Protocol

from memtune.wire.report import Ending
from memtune_runner.rank.bad_input import BadInputError
from memtune_runner.rank.hang_grace import HangGrace
from memtune_runner.rank.preflight import check_torch

_PERIOD_SECONDS = 0.5
# A node without a heartbeat for this long is lost, as in torch's own rendezvous: 3 x 5 s
# (RendezvousSettings.keep_alive_interval and keep_alive_max_attempt).
_SILENCE_SECONDS = 15.0
# How long node 0, which hosts the store, waits for the other nodes to read how the run ended.
_FAREWELL_SECONDS = 5.0
_PREFIX = "memtune/"


class Ended(NamedTuple):
    """How the run ended on one node. ``is_graceful`` leaves the workers time to save a checkpoint."""

    node: int
    ending: Ending
    exit_code: int
    message: str
    is_graceful: bool = False

    def to_json(self) -> str:
        return json.dumps(self._asdict())

    @classmethod
    def from_json(cls, text: bytes) -> Ended:
        values = json.loads(text)
        return cls(**{**values, "ending": Ending(values["ending"])})


class Peers(Protocol):
    """The launchers of the other nodes, as seen by the launcher of one node."""

    def variables(self) -> dict[str, str]:
        """Return the variables by which workers find the workers of the other nodes."""

    def shared(self, make: Callable[[], str], is_over: Callable[[], bool]) -> str:
        """Return on every node what ``make`` returns on node 0; empty if the run ends first."""

    def first(self) -> Ended | None:
        """Return what ended the run first, on any node; None while the run goes on."""

    def announce(self, ended: Ended) -> int:
        """Announce that this node has ended and return its place among all endings, from 0."""

    def others_have_left(self) -> bool:
        """Whether no other node needs this one any more."""

    def leave(self) -> None:
        """Stop communicating. Node 0 stays until the other nodes have read how the run ended."""


class Alone:
    """The peers of a single-node run. It needs no torch, so the workers start at once."""

    def __init__(self) -> None:
        self._first: Ended | None = None

    def variables(self) -> dict[str, str]:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}

    def shared(self, make: Callable[[], str], is_over: Callable[[], bool]) -> str:
        return make()

    def first(self) -> Ended | None:
        return self._first

    def announce(self, ended: Ended) -> int:
        self._first = self._first or ended
        return 0

    def others_have_left(self) -> bool:
        return True

    def leave(self) -> None:
        pass


class Stored:
    """The peers of a multi-node run. They meet in a torch TCPStore hosted by node 0, which the workers use as well."""

    def __init__(
        self, node: int, nodes: int, host: str, port: int, hang_grace: HangGrace, connect: Callable[[], Any]
    ) -> None:
        self._node, self._nodes, self._host, self._port = node, nodes, host, port
        # One connection for each thread: a blocking call holds up every other call on the same connection.
        self._store, self._watched = connect(), connect()
        self._first: Ended | None = None
        self._hang_grace, self._times_asked = hang_grace, 0
        self._leaving = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="peers", daemon=True)

    def meet(self, seconds: float, is_over: Callable[[], bool]) -> None:
        """Wait until the launchers of all nodes are present."""
        try:
            self._wait_for_all(seconds, is_over)
        except RuntimeError:
            self._first = _lost(0)
        else:
            self._watcher.start()

    def _wait_for_all(self, seconds: float, is_over: Callable[[], bool]) -> None:
        self._store.set(f"{_PREFIX}here/{self._node}", "")
        deadline = time.monotonic() + seconds
        while missing := [node for node in range(self._nodes) if not self._store.check([f"{_PREFIX}here/{node}"])]:
            if is_over():
                return
            if time.monotonic() > deadline:
                names = ", ".join(map(str, missing))
                raise BadInputError(f"node {names} did not come to the rendezvous within {seconds:.0f} s")
            time.sleep(_PERIOD_SECONDS / 5)

    def variables(self) -> dict[str, str]:
        return {
            "MASTER_ADDR": self._host,
            "MASTER_PORT": str(self._port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }

    def shared(self, make: Callable[[], str], is_over: Callable[[], bool]) -> str:
        key = f"{_PREFIX}shared"
        if self._node == 0:
            self._store.set(key, make())
        while not (self.first() or is_over()):
            with suppress(RuntimeError):  # node 0's store is gone; the watcher reports it
                if self._store.check([key]):
                    return str(self._store.get(key).decode())
            time.sleep(_PERIOD_SECONDS / 5)
        return ""

    def first(self) -> Ended | None:
        return self._first

    def announce(self, ended: Ended) -> int:
        try:
            order = int(self._store.add(f"{_PREFIX}endings", 1)) - 1
            if order == 0:
                self._store.set(f"{_PREFIX}first", ended.to_json())
        except RuntimeError:  # node 0's store is gone
            return self._nodes
        if order == 0:
            self._first = ended
        return order

    def others_have_left(self) -> bool:
        if self._node:
            return True
        return all(self._store.check([f"{_PREFIX}left/{node}"]) for node in range(1, self._nodes))

    def leave(self) -> None:
        self._leaving.set()
        deadline = time.monotonic() + _FAREWELL_SECONDS
        with suppress(RuntimeError):
            self._store.set(f"{_PREFIX}left/{self._node}", "")
            while not self.others_have_left() and time.monotonic() < deadline:
                time.sleep(_PERIOD_SECONDS / 5)

    def _watch(self) -> None:
        last_seen = dict.fromkeys(range(1, self._nodes), (0, time.monotonic()))
        try:
            while not self._leaving.wait(_PERIOD_SECONDS) and self._first is None:
                self._first = self._look(last_seen)
        except RuntimeError:
            if not self._leaving.is_set():
                self._first = _lost(0)

    def _look(self, last_seen: dict[int, tuple[int, float]]) -> Ended | None:
        """Look into the store once: return what ended the run, or the node whose heartbeat has stopped."""
        if self._watched.check([f"{_PREFIX}first"]):
            return Ended.from_json(self._watched.get(f"{_PREFIX}first"))
        self._share_hang_grace()
        if self._node:
            self._watched.add(f"{_PREFIX}alive/{self._node}", 1)
            return None
        for node, (beat, since) in last_seen.items():
            if self._watched.check([f"{_PREFIX}left/{node}"]):
                continue
            newest = int(self._watched.add(f"{_PREFIX}alive/{node}", 0))
            if newest != beat:
                last_seen[node] = (newest, time.monotonic())
            elif time.monotonic() - since > _SILENCE_SECONDS:
                return _lost(node)
        return None

    def _share_hang_grace(self) -> None:
        """Publish that ranks of this node ask for an extended hang timeout, and pass on other nodes' requests."""
        own = int(self._hang_grace.has_request())
        times = int(self._watched.add(f"{_PREFIX}hang-grace", own))
        if times > self._times_asked + own:
            self._hang_grace.ask_for_others()
        self._times_asked = times


def join(
    node: int, nodes: int, rendezvous: str, seconds: float, hang_grace: HangGrace, is_over: Callable[[], bool]
) -> Peers:
    """Meet the launchers of the other nodes at ``rendezvous`` (host:port), or give up when ``is_over`` returns True."""
    if nodes == 1:
        return Alone()
    host, _, port = rendezvous.rpartition(":")
    if not host or not port.isdecimal():
        raise BadInputError(f"MEMTUNE_RENDEZVOUS={rendezvous!r} is not a host and a port; {nodes} nodes cannot meet")
    check_torch()
    started = time.monotonic()
    if node:
        _wait_for(host, int(port), seconds, is_over)
    stored = Stored(node, nodes, host, int(port), hang_grace, _connections(node, host, int(port)))
    stored.meet(max(seconds - (time.monotonic() - started), 1.0), is_over)
    return stored


def _wait_for(host: str, port: int, seconds: float, is_over: Callable[[], bool]) -> None:
    """Wait until node 0 is reachable; its name resolves only when its pod has an address."""
    deadline = time.monotonic() + seconds
    while (problem := _problem_reaching(host, port)) is not None and not is_over():
        if time.monotonic() > deadline:
            raise BadInputError(
                f"the rendezvous {host}:{port} cannot be reached within {seconds:.0f} s ({problem}); "
                "does the pod of node 0 run?"
            )
        time.sleep(_PERIOD_SECONDS)


def _problem_reaching(host: str, port: int) -> str | None:
    try:
        socket.create_connection((host, port), 2.0).close()
    except OSError as error:
        return error.strerror or str(error)
    return None


def _connections(node: int, host: str, port: int) -> Callable[[], Any]:
    """Return a factory of connections to the store; on node 0 the first connection hosts the store."""
    # The store logs a stack trace for every broken connection; the launcher reports each in one line instead.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # re-exported without __all__

    timeout = timedelta(seconds=_SILENCE_SECONDS)
    is_host = [node == 0]

    def connect() -> Any:
        hosts = bool(is_host) and is_host.pop()
        # Node 0 connects to itself without its own name, which may not resolve yet.
        at = "localhost" if node == 0 else host
        try:
            return TCPStore(at, port, is_master=hosts, timeout=timeout, wait_for_workers=False)
        except RuntimeError as error:
            raise BadInputError(f"the rendezvous store at {at}:{port} cannot be opened: {error}") from None

    return connect


def _lost(node: int) -> Ended:
    return Ended(node, Ending.TERMINATED, 143, f"node {node} is lost: its launcher gives no sign of life")
