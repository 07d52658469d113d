"""`make demo`: what it asks of Helm whatever an earlier demo left, and how it ends where it cannot go on."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

Captured = pytest.CaptureFixture[str]


class HelmError(Exception):
    """As the library has it."""


class Helm:
    """Notes what it is asked for."""

    def __init__(self, states: list[str], trouble: str = "") -> None:
        self._states = states
        self._trouble = trouble
        self.asked: list[str] = []

    def list(self, all_states: bool) -> list[dict[str, str]]:
        assert all_states
        others = [{"name": "other", "status": "failed"}]
        return [*others, *({"name": "memtune", "status": state} for state in self._states)]

    def upgrade(self, _chart: object, release: str, *_: object, **__: object) -> None:
        self.asked.append(f"upgrade {release}")

    def uninstall(self, release: str, **_: object) -> None:
        self.asked.append(f"uninstall {release}")

    def install(self, _chart: object, release: str, *_: object, **__: object) -> None:
        self.asked.append(f"install {release}")
        if self._trouble:
            raise HelmError(self._trouble)

    def close(self) -> None:
        self.asked.append("close")


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module, with Helm's library and the images of a machine in their places."""
    helm: Any = ModuleType("helm_python")
    helm.HelmError = HelmError
    monkeypatch.setitem(sys.modules, "helm_python", helm)
    # The script puts the checkout there.
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "tools.demo", raising=False)
    module = importlib.import_module("tools.demo")
    monkeypatch.delitem(sys.modules, "tools.demo")
    monkeypatch.setattr(module, "image_id", lambda name: f"sha256:{name}")
    return module


@pytest.mark.parametrize(
    ("states", "asked"),
    [
        ([], ["install memtune"]),
        (["deployed"], ["upgrade memtune"]),
        (["failed"], ["uninstall memtune", "install memtune"]),
        (["pending-install"], ["uninstall memtune", "install memtune"]),
        (["pending-upgrade"], ["uninstall memtune", "install memtune"]),
        (["uninstalling"], ["uninstall memtune", "install memtune"]),
    ],
)
def test_the_chart_is_installed_over_whatever_is_left(demo: Any, states: list[str], asked: list[str]) -> None:
    helm = Helm(states)
    demo.helm_python.Config = lambda **_: helm
    demo.install("kubeconfig")
    assert helm.asked == [*asked, "close"]


def test_what_helm_refuses_is_told(demo: Any) -> None:
    helm = Helm([], "timed out")
    demo.helm_python.Config = lambda **_: helm
    with pytest.raises(demo.DemoError, match="Helm could not install the chart: timed out"):
        demo.install("kubeconfig")
    assert helm.asked[-1] == "close"


def raising(error: BaseException) -> Callable[[], None]:
    def main() -> None:
        raise error

    return main


def refusal(body: str) -> ApiException:
    error = ApiException(status=403, reason="Forbidden")
    error.body = body
    return error


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (KeyboardInterrupt(), 130, "interrupted; run `make demo` again, or `make demo-clean`"),
        (
            refusal('{"message": "namespaces is forbidden"}'),
            1,
            "the API server refused: namespaces is forbidden",
        ),
        (refusal("<html>"), 1, "the API server refused: 403 Forbidden"),
        (
            HTTPError("Max retries exceeded"),
            1,
            "no answer from the API server: Max retries exceeded",
        ),
    ],
)
def test_each_ending_is_one_line(
    demo: Any, error: BaseException, code: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setattr(demo, "main", raising(error))
    assert demo.run() == code
    assert capsys.readouterr().err.splitlines() == [f"demo: {said}"]


def test_a_demo_error_is_told_as_it_is(demo: Any, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setattr(demo, "main", raising(demo.DemoError("no room")))
    assert demo.run() == 1
    assert capsys.readouterr().err == "demo: no room\n"
