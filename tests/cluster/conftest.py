"""A running cluster for the whole run, and a fresh namespace for every test.

MEMTUNE_KUBECONFIG=... uses any existing cluster instead. Its nodes must have our images and the base image under the
names that devcluster gives them (`make kind` sees to that), or MEMTUNE_TEST_IMAGE names an image with python3 that they
can pull; tests that need our images are then skipped, and so is what only devcluster can do.

Tests mostly wait, so workers of pytest-xdist share the cluster; whoever starts the workers starts and ends it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest
import turns
from failure_reports import pytest_runtest_makereport, tells  # noqa: F401  # a hook, found by its name
from helm_release import Release
from kubernetes import client, config
from leftovers import Leftovers
from operator_process import Jobs, OperatorProcess, install_crd
from pods import FOREIGN, IMAGE, Cluster, eventually, unsuitable
from turns import pytest_runtest_protocol  # noqa: F401  # a hook, found by its name

from dev.cluster import binaries
from dev.cluster.builds import OURS, image_name
from dev.cluster.layout import LOGS
from dev.cluster.shell import run, tail
from dev.cluster.state import current_nodes
from dev.cluster.versions import BASE_IMAGE

if TYPE_CHECKING:
    from xdist.remote import Producer  # type: ignore[import-untyped]  # it has no types
    from xdist.scheduler import LoadGroupScheduling  # type: ignore[import-untyped]  # the same
    from xdist.workermanage import WorkerController  # type: ignore[import-untyped]  # it has no types

_ROOT = Path(__file__).resolve().parents[2]
# Whether the cluster is not this run's.
_WAS_UP = pytest.StashKey[bool]()
# What ends with the workers.
_SHARED = pytest.StashKey[ExitStack]()
# Where each worker writes the groups of the tests.
_GROUPS = pytest.StashKey[Path]()


def _devcluster(*words: str) -> str:
    command = [sys.executable, "-m", "dev.cluster", *words]
    done = subprocess.run(command, cwd=_ROOT, text=True, capture_output=True, check=False)
    if done.returncode != 0:
        said = f"devcluster {' '.join(words)}: {done.stdout}{done.stderr}"
        if "PYTEST_XDIST_WORKER" in os.environ:
            pytest.fail(said)  # xdist would take an exit for a crash
        pytest.exit(said, returncode=1)
    return done.stdout.strip()


def pytest_configure(config: Any) -> None:
    for marker in (
        "alone: no other test may use the cluster or look at the machine meanwhile",
        "replaces_the_cluster: runs after all others, who would find a new, empty one",
        "xdist_group(name): tests of a group follow one another, on one worker",
    ):
        config.addinivalue_line("markers", marker)
    if _is_worker(config):
        if "cluster_was_up" not in config.workerinput:
            pytest.fail("workers share a cluster only where the tests are named tests/cluster, or a part of it")
        config.stash[_WAS_UP] = config.workerinput["cluster_was_up"]


def pytest_collection_modifyitems(config: Any, items: list[pytest.Item]) -> None:
    """Those that run alone come last: until then no worker waits for another."""
    for last in ("alone", "replaces_the_cluster"):
        items.sort(key=lambda item: item.get_closest_marker(last) is not None)
    for item in items:
        if FOREIGN and item.path.parent.name == "devcluster":
            item.add_marker(pytest.mark.skip(reason="MEMTUNE_KUBECONFIG names a cluster that devcluster did not make"))
    if _is_worker(config):
        worker = config.workerinput["workerid"]
        Path(config.workerinput["groups"], worker).write_text(json.dumps(_groups(items)), encoding="utf-8")


def _groups(items: list[pytest.Item]) -> dict[str, str]:
    """The group of each test that has one, by the test's id. Those that run alone are one, too."""
    groups = {item.nodeid: item.get_closest_marker("xdist_group") for item in items}
    alone = {item.nodeid: "alone" for item in items if item.get_closest_marker("alone")}
    return {**alone, **{test: str(group.args[0]) for test, group in groups.items() if group}}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadGroupScheduling | None:
    """Under `--dist loadgroup`, ask the workers for the groups: pytest-xdist 3.8 loses them under pytest 9.2."""
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadGroupScheduling

    class Groups(LoadGroupScheduling):  # type: ignore[misc]  # a class without types
        @cached_property
        def _of_tests(self) -> dict[str, str]:
            """What the first worker wrote, before it said that it had collected the tests; all write the same."""
            return dict(json.loads(min(config.stash[_GROUPS].iterdir()).read_text(encoding="utf-8")))

        def _split_scope(self, nodeid: str) -> str:
            return self._of_tests.get(nodeid) or super()._split_scope(nodeid)

    return Groups(config, log)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Start the cluster before the workers, with all that they share."""
    if not session.config.pluginmanager.hasplugin("dsession"):
        turns.begin(session.config)
        return
    shared = session.config.stash[_SHARED] = ExitStack()
    session.config.stash[_GROUPS] = Path(shared.enter_context(TemporaryDirectory()))
    kubeconfig = shared.enter_context(_running(session.config, "--build", *OURS))
    if not FOREIGN:
        _devcluster("load", "base", *map(image_name, OURS))  # which are built
    with config.new_client_from_config(kubeconfig) as connection:
        install_crd(connection)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: WorkerController) -> None:
    node.workerinput["cluster_was_up"] = node.config.stash.get(_WAS_UP, False)
    node.workerinput["groups"] = str(node.config.stash.get(_GROUPS, ""))


@pytest.hookimpl(trylast=True)  # the workers have ended then
def pytest_sessionfinish(session: pytest.Session) -> None:
    turns.end(session.config)
    try:
        session.config.stash.get(_SHARED, ExitStack()).close()
    except AssertionError as left:
        pytest.exit(f"{left}", returncode=1)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if terminalreporter.config.stash.get(_WAS_UP, False):
        terminalreporter.write_line(
            "the cluster was up before these tests and stays up: nobody looked for what its `down` leaves behind"
        )


def _is_worker(config: Any) -> bool:
    return hasattr(config, "workerinput")


@contextmanager
def _running(config: pytest.Config, *options: str) -> Iterator[str]:
    """A cluster that is already up is reused and left up; one that was started for this run ends without a trace."""
    question = [sys.executable, "-m", "dev.cluster", "kubeconfig"]
    was_up = subprocess.run(question, cwd=_ROOT, capture_output=True, check=False).returncode == 0
    if was_up:
        config.stash[_WAS_UP] = True
        _devcluster("up", *options)
        yield _devcluster("kubeconfig")
        return
    _devcluster("down")  # what a run that was killed has left is no trace of this one
    leftovers = Leftovers()
    _start_for_this_run(*options)
    yield _devcluster("kubeconfig")
    _devcluster("down")
    with suppress(AssertionError):
        # The kernel and init take a moment for what was killed.
        eventually(lambda: not leftovers.left(), "the leftovers to go", 10)
    assert leftovers.left() == []


@pytest.fixture(scope="session")
def kubeconfig(pytestconfig: pytest.Config) -> Iterator[str]:
    if _is_worker(pytestconfig):
        yield _devcluster("kubeconfig")
    else:
        with _running(pytestconfig) as running:
            yield running


@pytest.fixture
def own_cluster(kubeconfig: str, pytestconfig: pytest.Config) -> None:  # noqa: ARG001  # it says whose cluster it is
    """One that was started for this run, and so holds nobody's work."""
    if FOREIGN or pytestconfig.stash.get(_WAS_UP, False):
        pytest.skip("the cluster was up before these tests, and this one would end it")


def _start_for_this_run(*options: str) -> None:
    """A cluster that starts by half must not stay: the next run would take it for one that was up before."""
    try:
        _devcluster("up", "--nodes", "2", *options)
    except BaseException as failure:
        if isinstance(failure, pytest.exit.Exception):
            failure.msg += f"\n{_ends_of_logs()}"  # they go with the cluster
            failure.args = (failure.msg,)
        # What `down` says must not take the place of why `up` failed.
        subprocess.run([sys.executable, "-m", "dev.cluster", "down"], cwd=_ROOT, capture_output=True, check=False)
        raise


def _ends_of_logs() -> str:
    """Of all parts: of those that live, too, for whoever waited in vain."""
    logs = [path for folder in (LOGS, *(node.log for node in current_nodes())) for path in sorted(folder.glob("*.log"))]
    return "\n".join(f"the end of {path}:\n{tail(path)}" for path in logs)


@pytest.fixture(scope="session")
def cluster(kubeconfig: str, pytestconfig: pytest.Config) -> Iterator[Cluster]:
    with config.new_client_from_config(kubeconfig) as connection:
        running = Cluster(connection)
        if not FOREIGN and not _is_worker(pytestconfig):
            _devcluster("load", "base")
        elif IMAGE == BASE_IMAGE and running.lacks(BASE_IMAGE):
            reason = f"nodes {', '.join(running.lacks(BASE_IMAGE))} lack {BASE_IMAGE}: run `make kind`, or set"
            pytest.exit(f"{reason} MEMTUNE_TEST_IMAGE to an image with python3 that the nodes can pull", returncode=1)
        yield running


@pytest.fixture(scope="session")
def devcluster() -> Callable[..., str]:
    """The command, for tests of what only this cluster can do."""
    if FOREIGN:
        pytest.skip("MEMTUNE_KUBECONFIG names a cluster that devcluster did not make")
    return _devcluster


@pytest.fixture
def kubectl(kubeconfig: str, tmp_path: Path) -> Callable[..., str]:
    """The command, for what users see: devcluster's own, or that of whoever has made the cluster.

    Its cache is its own, so that the user's kubectl does not believe what this one saw.
    """
    command = shutil.which("kubectl") if FOREIGN else binaries.command("kubectl")
    if command is None:
        pytest.skip("there is no kubectl on this machine")
    environment = {**os.environ, "KUBECONFIG": kubeconfig}
    return lambda *words: run([command, "--cache-dir", str(tmp_path / "kubectl-cache"), *words], env=environment)


@pytest.fixture(scope="session")
def images(cluster: Cluster, pytestconfig: pytest.Config) -> dict[str, str]:
    """Our own images by what they are, on every node; on devcluster they are built where something has changed."""
    names = {image: image_name(image) for image in OURS}
    if not FOREIGN:
        if not _is_worker(pytestconfig):
            _devcluster("load", *OURS)
    elif lacking := {node for name in names.values() for node in cluster.lacks(name)}:
        pytest.skip(f"nodes {', '.join(sorted(lacking))} lack {' or '.join(names.values())}")
    return names


@pytest.fixture(scope="session")
def crd(cluster: Cluster, pytestconfig: pytest.Config) -> None:
    """Our CRD as it is in this checkout."""
    if not _is_worker(pytestconfig):
        install_crd(cluster.connection)


@pytest.fixture
def release(
    kubeconfig: str,
    cluster: Cluster,
    namespace: str,
    images: dict[str, str],
    crd: None,  # noqa: ARG001  # it must be there
) -> Iterator[Release]:
    """A release of the chart that a test may install; it is uninstalled, and the CRD stays."""
    made = Release(kubeconfig, namespace, images, cluster)
    yield made
    made.close()


@pytest.fixture
def two_nodes(cluster: Cluster) -> tuple[str, str]:
    """Two nodes that pods can be put on."""
    names = sorted(cluster.images_by_node())
    if len(names) < 2:
        unsuitable(f"this test needs two nodes, and the cluster has {names}: `devcluster up --nodes 2`")
    return names[0], names[1]


@pytest.fixture
def namespace(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace that accepts pods; its events, pod states and logs are part of the report when the test fails."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    tells(request.node, f"namespace {name}", partial(cluster.story, name))
    cluster.core.create_namespace({"metadata": {"name": name}})
    eventually(lambda: cluster.accepts_pods(name), "the namespace's default ServiceAccount")
    yield name
    try:
        cluster.core.delete_namespace(name)
    except client.ApiException as error:
        if error.status != 404:  # gone already: a test may be about just that
            raise


@pytest.fixture
def jobs(cluster: Cluster, namespace: str, crd: None) -> Jobs:  # noqa: ARG001  # it must be there
    return Jobs(cluster.connection, namespace)


@pytest.fixture
def operators(
    kubeconfig: str,
    namespace: str,
    images: dict[str, str],
    crd: None,  # noqa: ARG001  # it must be there
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> Iterator[Callable[..., OperatorProcess]]:
    """Makes operators for the test's namespace; each is started by the test, and ended after it."""
    made: list[OperatorProcess] = []

    def make(**settings: str) -> OperatorProcess:
        log = tmp_path / f"operator-{len(made)}.log"
        made.append(OperatorProcess(kubeconfig, namespace, images["runner"], log, **settings))
        tells(request.node, log.stem, made[-1].log)
        return made[-1]

    yield make
    for each in made:
        each.stop()


@pytest.fixture
def operator(operators: Callable[..., OperatorProcess]) -> OperatorProcess:
    """The one operator of the test's namespace, running."""
    only = operators()
    only.start()
    return only
