"""A soak ends when it is interrupted, when a part is dead and when a pod never ends."""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request
from types import SimpleNamespace
from typing import Any

import pytest
import soak
from soak import Load, measure

REFUSED = urllib.error.URLError(ConnectionRefusedError(111, "Connection refused"))


class Core:
    """An API whose pods never change."""

    def __init__(self, phase: str) -> None:
        self.phase = phase
        self.made: list[str] = []
        self.deleted: list[str] = []

    def create_namespaced_pod(self, _: str, body: dict[str, Any]) -> None:
        self.made.append(body["metadata"]["name"])

    def read_namespaced_pod(self, *_: str) -> SimpleNamespace:
        return SimpleNamespace(status=SimpleNamespace(phase=self.phase))

    def delete_namespaced_pod(self, name: str, *_: str, **__: int) -> None:
        self.deleted.append(name)

    def __getattr__(self, _: str) -> Any:
        return lambda *_, **__: None


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Load:
    """A load whose pods stay Pending, and whose threads only run these."""
    monkeypatch.setattr(Load, "_write", lambda _: None)
    monkeypatch.setattr(Load, "_watch", lambda _: None)
    monkeypatch.setattr(soak, "parts", dict)
    monkeypatch.setattr(soak, "SAMPLE_SECONDS", 0)
    made = Load(None, "soak")
    made.core = Core("Pending")
    return made


def alive(load: Load) -> bool:
    return any(thread.is_alive() for thread in load.threads)


def test_a_refused_collection_ends_the_soak_and_is_reported(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise REFUSED

    monkeypatch.setattr(soak, "live_bytes", refuse)
    measure(load, 3600)
    (failure,) = load.failures
    assert failure.startswith("collect was given up: URLError(")
    assert not alive(load)


def test_the_part_that_refuses_to_collect_is_named(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise REFUSED

    monkeypatch.setattr(ssl, "SSLContext", lambda _: SimpleNamespace(load_cert_chain=lambda *_: None))
    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    monkeypatch.setattr(soak, "current_nodes", tuple)
    load.attempt(soak.live_bytes)
    (failure,) = load.failures
    assert soak.COLLECTING["kube-apiserver"] in failure
    assert "Connection refused" in failure


def test_an_interruption_ends_the_load(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(soak, "live_bytes", interrupt)
    with pytest.raises(KeyboardInterrupt):
        measure(load, 3600)
    assert not alive(load)


def test_a_pod_that_never_ends_is_a_failure(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "POD_SECONDS", -1)
    load.attempt(load._run_pods)
    assert load.failures == ["run_pods was given up: TimeoutError('pod-0 is still Pending after -1 s')"]


def test_the_end_of_the_soak_ends_waiting_for_pods(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "live_bytes", dict)
    measure(load, 0)
    assert load.failures == []
    assert not load.counts
    assert not alive(load)


def test_a_thread_that_hangs_is_a_failure_and_not_waited_for(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "END_SECONDS", 0)
    monkeypatch.setattr(load.stop, "set", lambda: None)
    monkeypatch.setattr(soak, "live_bytes", dict)
    measure(load, 0)
    monkeypatch.undo()
    load.end()
    assert load.failures == [f"{soak.PODS_AT_ONCE} threads of the load did not stop in 0 s"]


def test_pods_that_end_are_counted_and_deleted(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    core = load.core = Core("Succeeded")
    monkeypatch.setattr(load, "_until_stopped", lambda: iter([0]))
    load._run_pods()
    assert load.counts == {"pods succeeded": 1}
    assert core.deleted == core.made == ["pod-0"]


def test_live_memory_is_read_from_the_go_metrics_page() -> None:
    page = "heap profile: 4: 64 [9: 80] @ heap/1048576\n# Alloc = 7\n# Stack = 100 / 200\n# HeapAlloc = 3000\n"
    assert soak.profiled_bytes(page) == 3100


@pytest.mark.parametrize(
    ("row", "judged"),
    [("etcd/7", True), ("kubelet/8", False), ("kubelet of node-1, live", True), ("kube-apiserver, live", True)],
)
def test_parts_with_known_live_memory_are_judged_by_it_alone(row: str, judged: bool) -> None:
    assert soak.is_judged(row) is judged
