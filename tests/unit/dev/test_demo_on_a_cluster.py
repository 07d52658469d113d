"""The demo on a cluster: its requests to Helm and the API, its success and its failures."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

Captured = pytest.CaptureFixture[str]


class HelmError(Exception):
    """As in the library."""


class Helm:
    """Records its calls."""

    def __init__(self, states: list[str], trouble: str = "") -> None:
        self._states = states
        self._trouble = trouble
        self.asked: list[str] = []

    def list(self, all_states: bool) -> list[dict[str, str]]:
        assert all_states
        others = [{"name": "other", "status": "failed"}]
        return [*others, *({"name": "memtune", "status": state} for state in self._states)]

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
    """The module, with a stub for Helm's library."""
    helm: Any = ModuleType("helm_python")
    helm.HelmError = HelmError
    monkeypatch.setitem(sys.modules, "helm_python", helm)
    monkeypatch.delitem(sys.modules, "tools.demo.on_cluster", raising=False)
    module = importlib.import_module("tools.demo.on_cluster")
    monkeypatch.delitem(sys.modules, "tools.demo.on_cluster")
    return module


@pytest.mark.parametrize(
    ("states", "asked"),
    [
        ([], ["install memtune"]),
        (["deployed"], ["uninstall memtune", "install memtune"]),
        (["pending-install"], ["uninstall memtune", "install memtune"]),
    ],
)
def test_the_chart_is_installed_afresh_over_any_remains(demo: Any, states: list[str], asked: list[str]) -> None:
    helm = Helm(states)
    demo.helm_python.Config = lambda **_: helm
    demo.install("kubeconfig", {})
    assert helm.asked == [*asked, "close"]


def test_errors_of_helm_are_shown(demo: Any) -> None:
    helm = Helm([], "timed out")
    demo.helm_python.Config = lambda **_: helm
    with pytest.raises(demo.DemoError, match="Helm could not install the chart: timed out"):
        demo.install("kubeconfig", {})
    assert helm.asked[-1] == "close"


class Definitions:
    """The API's CRDs, maybe ours among them."""

    def __init__(self, annotations: dict[str, str] | None) -> None:
        metadata = SimpleNamespace(name="memorytunedjobs.memtune.dev", resourceVersion="7", annotations=annotations)
        self._found = [] if annotations is None else [SimpleNamespace(metadata=metadata)]
        self.replaced: list[Any] = []

    def get(self) -> Any:
        return SimpleNamespace(items=self._found)

    def replace(self, body: Any) -> None:
        self.replaced.append(body["metadata"]["resourceVersion"])


THEIRS = {"meta.helm.sh/release-name": "memtune", "meta.helm.sh/release-namespace": "memtune-system"}
OURS = {**THEIRS, "meta.helm.sh/release-namespace": "memtune-demo-system"}


@pytest.mark.parametrize(
    ("annotations", "is_ours", "installs", "replaced"),
    [
        (None, False, True, []),
        (OURS, False, True, []),
        (None, True, True, []),
        (THEIRS, True, False, ["7"]),
        ({}, True, False, ["7"]),
    ],
)
def test_helm_installs_the_crd_unless_it_is_there(
    demo: Any, annotations: dict[str, str] | None, is_ours: bool, installs: bool, replaced: list[str]
) -> None:
    definitions = Definitions(annotations)
    resources = SimpleNamespace(get=lambda **_: definitions)
    demo.dynamic = SimpleNamespace(DynamicClient=lambda _: SimpleNamespace(resources=resources))
    assert demo.chart_installs_crd(None, is_ours) == installs
    assert definitions.replaced == replaced


def test_an_installation_of_somebody_else_is_left_alone(demo: Any) -> None:
    resources = SimpleNamespace(get=lambda **_: Definitions(THEIRS))
    demo.dynamic = SimpleNamespace(DynamicClient=lambda _: SimpleNamespace(resources=resources))
    with pytest.raises(
        demo.DemoError, match=r"MemTune is there already, and `kubectl apply -f examples/quickstart\.yaml`"
    ):
        demo.chart_installs_crd(None, is_ours=False)


def test_the_dashboard_opens_on_the_job_and_on_the_last_ten_minutes(demo: Any) -> None:
    address = urlsplit(demo.dashboard(demo.Pages("http://127.0.0.1:23910", ""), 1_800_000_000.0))
    assert (address.netloc, address.path) == ("127.0.0.1:23910", "/d/memtune-job")
    assert parse_qs(address.query) == {
        "from": ["1799999400000"],
        "to": ["1800000000000"],
        "var-namespace": ["memtune-demo"],
        "var-job": ["quickstart"],
    }


@pytest.mark.parametrize(
    ("kubectl", "further"),
    [
        ("kubectl --kubeconfig k", "kubectl --kubeconfig k -n memtune-demo describe memorytunedjobs quickstart"),
        (None, "memtune status quickstart -n memtune-demo --kubeconfig k"),
    ],
)
def test_the_end_names_the_report_and_one_command(demo: Any, kubectl: str | None, further: str) -> None:
    said = demo.ending(kubectl, ["-n", "memtune-demo", "--kubeconfig", "k"], None)
    assert f"report        {demo.REPORT.as_uri()}\n" in said
    assert further in said
    assert "docs/dashboards.md" in said


class Namespaces:
    """The API's namespaces by name, with their labels."""

    def __init__(self, **labels: dict[str, str] | None) -> None:
        self.labels = {name.replace("_", "-"): each for name, each in labels.items()}
        self.changes: list[str] = []

    def list_namespace(self) -> Any:
        found = [
            SimpleNamespace(metadata=SimpleNamespace(name=name, labels=each)) for name, each in self.labels.items()
        ]
        return SimpleNamespace(items=found)

    def create_namespace(self, body: Any) -> None:
        self.changes.append(f"create {body['metadata']['name']}")
        self.labels[body["metadata"]["name"]] = body["metadata"]["labels"]

    def delete_namespace(self, name: str) -> None:
        self.changes.append(f"delete {name}")
        del self.labels[name]


@pytest.fixture
def cluster(demo: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A foreign cluster, on which the demo may go as far as Helm."""
    monkeypatch.setattr(demo.config, "new_client_from_config", nullcontext)
    monkeypatch.setattr(demo.time, "sleep", lambda _: None)
    monkeypatch.setattr(demo, "chart_installs_crd", lambda *_: True)
    helm = Helm([], "as far as this test goes")
    demo.helm_python.Config = lambda **_: helm
    return SimpleNamespace(kubeconfig="k", is_ours=False, start=lambda: None, images=dict, helm=helm)


@pytest.mark.parametrize("name", ["memtune-demo", "memtune-demo-system"])
@pytest.mark.parametrize("labels", [None, {"team": "lab"}, {"app.kubernetes.io/managed-by": "Helm"}])
@pytest.mark.parametrize("act", ["demo", "clean"])
def test_a_namespace_of_somebody_else_is_refused_before_anything_is_touched(
    name: str, labels: dict[str, str] | None, act: str, demo: Any, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = Namespaces(default=None, **{name: labels})
    monkeypatch.setattr(demo.client, "CoreV1Api", lambda _: core)
    with pytest.raises(
        demo.DemoError, match=rf"{name} has no label .*=memtune-demo: .*`kubectl delete namespace {name}`"
    ):
        getattr(demo, act)(cluster)
    assert (core.changes, cluster.helm.asked) == ([], [])


def test_the_demo_labels_its_namespaces_and_removes_them(
    demo: Any, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = Namespaces(default=None)
    monkeypatch.setattr(demo.client, "CoreV1Api", lambda _: core)
    for _ in range(2):
        with pytest.raises(demo.DemoError, match="as far as this test goes"):
            demo.demo(cluster)
    label = {"app.kubernetes.io/managed-by": "memtune-demo"}
    assert core.labels == {"default": None, "memtune-demo": label, "memtune-demo-system": label}
    assert core.changes[2:] == ["delete memtune-demo", "create memtune-demo"]
    demo.clean(cluster)
    assert list(core.labels) == ["default"]
    assert cluster.helm.asked[-2:] == ["uninstall memtune", "close"]


def test_on_a_cluster_of_ours_namespaces_need_no_label(demo: Any) -> None:
    demo.check_namespaces(Namespaces(memtune_demo=None), is_ours=True)


def raising(error: BaseException) -> Callable[[object], None]:
    def demo(_: object) -> None:
        raise error

    return demo


def refusal(body: str) -> ApiException:
    error = ApiException(status=403, reason="Forbidden")
    error.body = body
    return error


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (KeyboardInterrupt(), 130, []),
        (refusal('{"message": "namespaces is forbidden"}'), 1, ["the API server refused: namespaces is forbidden"]),
        (refusal("<html>"), 1, ["the API server refused: 403 Forbidden"]),
        (HTTPError("Max retries exceeded"), 1, ["no answer from the API server: Max retries exceeded"]),
    ],
)
def test_each_ending_is_one_line(
    demo: Any, error: BaseException, code: int, said: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setattr(demo, "demo", raising(error))
    assert demo.run("devcluster") == code
    assert capsys.readouterr().err.splitlines() == [f"demo: {each}" for each in said]


def test_errors_of_the_demo_are_shown_unchanged(demo: Any, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setattr(demo, "demo", raising(demo.DemoError("no room")))
    assert demo.run("kind") == 1
    assert capsys.readouterr().err == "demo: no room\n"
