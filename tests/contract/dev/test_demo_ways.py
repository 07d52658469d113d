"""Which kind of cluster the demo uses on a machine, and the commands of docker and kind, with stubs for them."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kubernetes import client, config

from tools.demo import __main__ as main
from tools.demo import clusters, ways
from tools.demo.terminal import DemoError, check_recovery


class Machine:
    """A PATH with only these commands. Each records its arguments, prints its text and exits with its code."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._bin = directory / "bin"
        self._bin.mkdir()
        self._log = directory / "log"
        self._log.touch()
        monkeypatch.setenv("PATH", str(self._bin))

    def has(self, name: str, prints: str = "", code: int = 0) -> None:
        script = f"#!/bin/sh\necho {name} $* >>{self._log}\nprintf '{prints}'\nexit {code}\n"
        (self._bin / name).write_text(script)
        (self._bin / name).chmod(0o755)

    def ran(self) -> list[str]:
        return self._log.read_text().splitlines()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine on which devcluster cannot run."""
    monkeypatch.setitem(ways._LACKING, "devcluster", lambda: "devcluster needs Linux, and this is Darwin")
    return Machine(tmp_path, monkeypatch)


def test_kind_is_taken_where_docker_answers(machine: Machine) -> None:
    machine.has("docker")
    machine.has("kind")
    assert ways.choose("") == ("kind", "")
    assert machine.ran() == ["docker info"]


@pytest.mark.usefixtures("machine")
def test_devcluster_is_taken_where_it_can_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ways._LACKING, "devcluster", str)
    assert ways.choose("") == ("devcluster", "")


@pytest.mark.parametrize(
    ("commands", "reason"),
    [
        ({}, "there is no command `docker`"),
        ({"docker": 0}, "there is no command `kind`"),
        ({"docker": 1, "kind": 0}, "`docker info` finds no engine"),
    ],
)
def test_the_demo_without_a_cluster_says_what_one_needs(
    commands: dict[str, int], reason: str, machine: Machine
) -> None:
    for name, code in commands.items():
        machine.has(name, code=code)
    chosen, hint = ways.choose("")
    assert chosen == "none"
    assert hint.count("\n") == 0
    assert f"({reason}; devcluster needs Linux, and this is Darwin)" in hint
    assert "make demo CLUSTER=current" in hint


@pytest.mark.parametrize("asked", ["current", "none"])
def test_the_requested_way_is_taken(asked: str, machine: Machine) -> None:
    machine.has("docker")
    machine.has("kind")
    assert ways.choose(asked) == (asked, "")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("kind", "CLUSTER=kind cannot be used here: there is no command `docker`"),
        ("minikube", "CLUSTER=minikube is not known; give one of current, kind, devcluster, none"),
    ],
)
@pytest.mark.usefixtures("machine")
def test_a_way_that_cannot_run_is_refused(asked: str, said: str) -> None:
    with pytest.raises(DemoError, match=said):
        ways.choose(asked)


@pytest.mark.parametrize("name", ways.WAYS)
def test_each_way_says_first_what_it_does(name: str) -> None:
    said = ways.announcement(name, {"KUBECONFIG": "/own"})
    first, *rest = said.splitlines()
    assert first.startswith("make demo: ")
    assert f"(CLUSTER={name})" in first
    removes = ["removes"] if name == "current" else []
    assert [line.split()[0] for line in rest][: 4 + len(removes)] == ["does", *removes, "installs", "takes", "ends"]
    assert ("/own" in said) == (name == "current")


@pytest.mark.usefixtures("machine")
def test_a_variable_for_the_tests_does_not_lead_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMTUNE_KUBECONFIG", "/own")
    monkeypatch.setenv("CLUSTER", "minikube")
    monkeypatch.setattr(sys, "argv", ["demo"])
    assert main.main() == 1
    assert "MEMTUNE_KUBECONFIG" not in os.environ


@pytest.mark.parametrize(("clusters_there", "made"), [("other\\n", "create"), ("memtune-demo\\n", "export")])
def test_kind_makes_a_cluster_builds_the_images_and_loads_them(
    clusters_there: str, made: str, machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.has("docker")
    machine.has("kind", prints=clusters_there)
    monkeypatch.setattr(clusters, "BUILD", tmp_path / "build")
    monkeypatch.setattr(clusters, "KIND_MADE", tmp_path / "made")
    given: list[Any] = []
    monkeypatch.setattr(clusters, "advertise_gpus", lambda *words: given.append(words))
    listed = SimpleNamespace(items=[SimpleNamespace(metadata=SimpleNamespace(name="memtune-demo-control-plane"))])
    core = SimpleNamespace(list_node=lambda: listed)
    monkeypatch.setattr(client, "CoreV1Api", lambda _: core)
    monkeypatch.setattr(config, "new_client_from_config", nullcontext)
    kind = clusters.Kind()
    kind.start()
    kubeconfig = tmp_path / "build" / "kubeconfig"
    own = f"--name memtune-demo --kubeconfig {kubeconfig}"
    assert machine.ran() == [
        "kind get clusters",
        f"kind create cluster {own} --wait 120s" if made == "create" else f"kind export kubeconfig {own}",
        "docker build --file=images/operator.Dockerfile --tag=localhost/memtune-operator:dev .",
        "docker build --file=images/runner.Dockerfile --tag=localhost/memtune-runner:dev --build-arg=TORCH_BUILD=cpu .",
        "kind load docker-image localhost/memtune-operator:dev localhost/memtune-runner:dev --name memtune-demo",
    ]
    assert given == [(core, "memtune-demo-control-plane")]
    assert (tmp_path / "made").exists() == (made == "create")
    assert kind.images()["runnerImage"] == {"repository": "localhost/memtune-runner", "tag": "dev"}


def test_a_failed_command_ends_the_demo_with_its_name(machine: Machine, tmp_path: Path, monkeypatch: Any) -> None:
    machine.has("kind", code=3)
    monkeypatch.setattr(clusters, "BUILD", tmp_path / "build")
    with pytest.raises(DemoError, match="`kind get clusters` ended with exit code 3"):
        clusters.Kind().start()


@pytest.fixture
def left(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A machine with remains of every kind: records what `clean` runs; a demo created the kind cluster."""
    machine.has("docker")
    machine.has("kind", prints="other\\nmemtune-demo\\n")
    monkeypatch.setitem(ways._LACKING, "devcluster", str)
    called: list[str] = []
    monkeypatch.setattr(main, "call", lambda *words: called.append(" ".join(words)))
    monkeypatch.setattr(main, "BUILD", tmp_path / "demo")
    monkeypatch.setattr(main, "KIND_MADE", tmp_path / "made")
    (tmp_path / "demo" / "state").mkdir(parents=True)
    (tmp_path / "made").touch()
    return SimpleNamespace(called=called, build=tmp_path / "demo", made=tmp_path / "made")


KIND_DOWN = "kind delete cluster --name memtune-demo"
DEVCLUSTER_DOWN = f"{sys.executable} -m dev.cluster down"
CURRENT_CLEAN = ["tools/env.sh demo", ".venv/bin/python -m tools.demo.on_cluster current clean"]


@pytest.mark.parametrize(
    ("asked", "called", "files_stay"),
    [
        ("", [KIND_DOWN, DEVCLUSTER_DOWN], False),
        ("current", CURRENT_CLEAN, True),
        ("kind", [KIND_DOWN], True),
        ("devcluster", [DEVCLUSTER_DOWN], True),
        ("none", [], False),
    ],
)
def test_clean_ends_the_way_that_is_named_alone(asked: str, called: list[str], files_stay: bool, left: Any) -> None:
    assert main.clean(asked) == 0
    assert left.called == called
    assert left.build.exists() == files_stay
    assert left.made.exists() == (KIND_DOWN not in called)


def test_clean_leaves_a_kind_cluster_that_no_demo_made_unless_it_is_named(left: Any) -> None:
    left.made.unlink()
    assert main.clean("") == 0
    assert left.called == [DEVCLUSTER_DOWN]
    left.called.clear()
    assert main.clean("kind") == 0
    assert left.called == [KIND_DOWN]


def test_clean_leaves_out_what_cannot_run_here(left: Any, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.has("docker", code=1)
    monkeypatch.setitem(ways._LACKING, "devcluster", lambda: "no")
    assert main.clean("") == 0
    assert left.called == []
    with pytest.raises(DemoError, match="CLUSTER=kind cannot be used here"):
        main.clean("kind")


def test_clean_refuses_a_way_that_is_not_known(left: Any) -> None:
    with pytest.raises(DemoError, match="CLUSTER=typo is not known; give one of current, kind, devcluster, none"):
        main.clean("typo")
    assert left.called == []
    assert left.build.exists()


NO_REGISTRY = r"REGISTRY is not set: build and push REGISTRY/memtune-operator .*docs/getting-started.md"


def test_the_current_context_needs_images_and_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REGISTRY", raising=False)
    with pytest.raises(DemoError, match=NO_REGISTRY):
        clusters.Current().start()


def test_without_a_registry_nothing_is_prepared(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.delenv("REGISTRY", raising=False)
    prepared: list[object] = []
    monkeypatch.setattr(main, "_at_once", lambda *commands: prepared.append(commands))
    with pytest.raises(DemoError, match=NO_REGISTRY):
        main.demo("current")
    assert (prepared, capsys.readouterr().out) == ([], "")


def test_commands_beside_a_failed_one_are_waited_for(tmp_path: Path) -> None:
    # The first fails while the second waits for it.
    first = ("sh", "-c", f"trap 'touch {tmp_path}/failed' EXIT; exit 3")
    second = ("sh", "-c", f"until [ -e {tmp_path}/failed ]; do :; done; sleep 0.2; touch {tmp_path}/through; exit 4")
    with pytest.raises(DemoError) as failed:
        main._at_once(first, (), second)
    assert (tmp_path / "through").exists()
    assert [code in str(failed.value) for code in ("exit code 3", "exit code 4")] == [True, True]


def nodes(*gpus: str) -> Any:
    found = [
        SimpleNamespace(status=SimpleNamespace(allocatable={"nvidia.com/gpu": each} if each else {})) for each in gpus
    ]
    return lambda _: SimpleNamespace(list_node=lambda: SimpleNamespace(items=found))


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch) -> None:
    class Connection:
        def __enter__(self) -> None: ...
        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setenv("REGISTRY", "registry.example/team")
    monkeypatch.setattr(config, "list_kube_config_contexts", lambda: ([], {"name": "lab"}))
    monkeypatch.setattr(config, "new_client_from_config", Connection)


@pytest.mark.usefixtures("context")
def test_the_current_context_takes_the_images_of_the_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "CoreV1Api", nodes("", "2"))
    monkeypatch.setenv("TAG", "dev")
    current = clusters.Current()
    current.start()
    assert current.images()["image"] == {"repository": "registry.example/team/memtune-operator", "tag": "dev"}


@pytest.mark.usefixtures("context")
def test_a_cluster_without_gpus_is_refused_with_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "CoreV1Api", nodes("", ""))
    with pytest.raises(DemoError, match=r"no node of lab advertises nvidia.com/gpu.*kubectl patch node NODE"):
        clusters.Current().start()


def test_a_demo_without_an_out_of_memory_has_failed() -> None:
    check_recovery([{"verdict": "device-oom"}, {"verdict": "succeeded"}])
    with pytest.raises(DemoError, match="the attempts ended as"):
        check_recovery([{"verdict": "succeeded"}])
