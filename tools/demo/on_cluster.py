"""The demo on a cluster: installs the chart with Helm, runs the quickstart and watches it. Nothing is removed.

A second call repeats it with a fresh job.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any
from urllib.parse import urlencode

import helm_python
import yaml
from kubernetes import client, config, dynamic
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from dev.cluster.layout import DASHBOARDS_PORT
from memtune.api import GROUP, PLURAL, VERSION
from tools.demo.clusters import CLUSTERS, DemoCluster, Pages
from tools.demo.terminal import (
    INTERRUPTED,
    JOB,
    JOB_FILE,
    MEMTUNE,
    REPORT,
    ROOT,
    DemoError,
    check_recovery,
    memtune,
    open_report,
    step,
)

CHART = ROOT / "charts" / "memtune"
CRD = f"{PLURAL}.{GROUP}"
CRD_FILE = ROOT / "crds" / f"{GROUP}_{PLURAL}.yaml"
RELEASE = "memtune"
# Not memtune-system, which users install into according to README.md: the demo must not be mistaken for that.
SYSTEM_NAMESPACE = "memtune-demo-system"
NAMESPACE = "memtune-demo"
# Marks both namespaces as the demo's; unmarked ones on a foreign cluster are not touched.
MADE_BY_US = {"app.kubernetes.io/managed-by": "memtune-demo"}
DELETION_SECONDS = 120
INSTALLATION_SECONDS = 180
SHOWN_SECONDS = 600
# The demo's operator only watches the demo's namespace, so it does not interfere with other operators.
SCOPE = {"rbac": {"scope": "namespaces", "namespaces": [NAMESPACE]}}
# The full name: with a cached discovery from before the CRD, kubectl refreshes it for full names only.
DESCRIBE = ("describe", PLURAL, JOB)
_WAITING: dict[str, Any] = {"wait": "watcher", "timeout": INSTALLATION_SECONDS}


def demo(cluster: DemoCluster) -> None:
    """Set everything up, run the quickstart and print what to look at."""
    began = time.monotonic()
    cluster.start()
    with config.new_client_from_config(cluster.kubeconfig) as connection:
        core = client.CoreV1Api(connection)
        check_namespaces(core, cluster.is_ours)
        crd = {"crd": {"install": chart_installs_crd(connection, cluster.is_ours)}}
        with step("A fresh namespace, and the chart by Helm"):
            make_namespaces(core)
            install(cluster.kubeconfig, {**cluster.images(), **SCOPE, **crd})
        pages = cluster.pages()
        with step(f"{JOB_FILE.relative_to(ROOT)}, applied"):
            apply(connection)
        REPORT.parent.mkdir(parents=True, exist_ok=True)
        report = ["report", JOB, "-o", str(REPORT), *(["--prometheus", pages.prometheus] if pages else [])]
        where = ["-n", NAMESPACE, *(["--kubeconfig", cluster.kubeconfig] if cluster.kubeconfig else [])]
        for words in (["watch", JOB], ["status", JOB], report):
            memtune(*words, *where)
        check_recovery(attempts(connection))
    open_report()
    print(f"\nThe demo took {time.monotonic() - began:.0f} s. Until `make demo-clean` there are:")
    print(ending(cluster.kubectl() or None, where, pages))


def ending(kubectl: str | None, where: list[str], pages: Pages | None) -> str:
    """The closing message: what to look at, and the command to continue."""
    describe = f"{kubectl} -n {NAMESPACE} {' '.join(DESCRIBE)}"
    further = describe if kubectl else f"{MEMTUNE} status {JOB} {' '.join(where)}"
    lines = [f"  report        {REPORT.as_uri()}", f"  look further  {further}"]
    if pages is None:
        return "\n".join([*lines, "docs/dashboards.md says how to see the dashboards in a Grafana of yours."])
    forwarding = f"ssh -L {DASHBOARDS_PORT}:127.0.0.1:{DASHBOARDS_PORT} MACHINE"
    lines.insert(0, f"  dashboards    {dashboard(pages, time.time())}")
    return "\n".join([*lines, f"From another machine: {forwarding} shows the dashboards."])


def dashboard(pages: Pages, now: float) -> str:
    """The URL of the job's dashboard for the last ten minutes, with fixed times."""
    span = {"from": int((now - SHOWN_SECONDS) * 1000), "to": int(now * 1000)}
    return f"{pages.dashboards}/d/memtune-job?{urlencode({**span, 'var-namespace': NAMESPACE, 'var-job': JOB})}"


def attempts(connection: client.ApiClient) -> list[dict[str, str]]:
    """The job's attempts."""
    jobs: Any = client.CustomObjectsApi(connection)
    found: list[dict[str, str]] = jobs.get_namespaced_custom_object(GROUP, VERSION, NAMESPACE, PLURAL, JOB)["status"][
        "attempts"
    ]
    return found


def chart_installs_crd(connection: Any, is_ours: bool) -> bool:
    """Whether Helm should install the CRD. Helm rejects one that it did not create; on our own cluster it is
    replaced."""
    definitions = dynamic.DynamicClient(connection).resources.get(
        api_version="apiextensions.k8s.io/v1", kind="CustomResourceDefinition"
    )
    found = next((each.metadata for each in definitions.get().items if each.metadata.name == CRD), None)
    if found is None:
        return True
    if is_ours:
        body = yaml.safe_load(CRD_FILE.read_text())
        body["metadata"]["resourceVersion"] = found.resourceVersion
        definitions.replace(body=body)
        return False
    release = {"meta.helm.sh/release-name": RELEASE, "meta.helm.sh/release-namespace": SYSTEM_NAMESPACE}
    if release.items() <= dict(found.annotations or {}).items():
        return True
    raise DemoError(
        f"the cluster has the CRD {CRD} of an installation that is not the demo's: MemTune is there already, and "
        f"`kubectl apply -f {JOB_FILE.relative_to(ROOT)}` runs the quickstart"
    )


def install(kubeconfig: str | None, values: dict[str, Any]) -> None:
    """Install a fresh release from the checkout, replacing an earlier demo's."""
    helm = helm_python.Config(kubeconfig_path=kubeconfig, namespace=SYSTEM_NAMESPACE)
    try:
        if RELEASE in [found["name"] for found in helm.list(all_states=True)]:
            helm.uninstall(RELEASE, **_WAITING)
        helm.install(CHART, RELEASE, values, **_WAITING)
    except helm_python.HelmError as error:
        raise DemoError(f"Helm could not install the chart: {error}") from error
    finally:
        helm.close()


def check_namespaces(core: Any, is_ours: bool) -> None:
    """Refuse namespaces of the demo's names that it did not create, since it deletes both."""
    for name, labels in _namespaces(core).items():
        if name in (NAMESPACE, SYSTEM_NAMESPACE) and not (is_ours or MADE_BY_US.items() <= labels.items()):
            label = "=".join(*MADE_BY_US.items())
            raise DemoError(
                f"the namespace {name} has no label {label}: the demo did not make it, and does not delete it. Use "
                f"another cluster, or delete it yourself by `kubectl delete namespace {name}` if nobody needs it"
            )


def make_namespaces(core: Any) -> None:
    """Create the demo's namespaces; the job's is emptied first."""
    delete_namespace(core, NAMESPACE)
    for name in {NAMESPACE, SYSTEM_NAMESPACE} - _namespaces(core).keys():
        core.create_namespace({"metadata": {"name": name, "labels": MADE_BY_US}})


def _namespaces(core: Any) -> dict[str, dict[str, str]]:
    """The labels of each namespace."""
    return {each.metadata.name: each.metadata.labels or {} for each in core.list_namespace().items}


def delete_namespace(core: Any, name: str) -> None:
    """Delete a namespace, if it exists, and wait until it is gone."""
    until = time.monotonic() + DELETION_SECONDS
    while name in _namespaces(core):
        if time.monotonic() > until:
            raise DemoError(f"the namespace {name} of an earlier demo does not go away; `make demo-clean` removes it")
        try:
            core.delete_namespace(name)
        except ApiException as error:
            if error.status not in (404, 409):
                raise
        time.sleep(1)


def apply(connection: Any) -> None:
    """Create every object of the quickstart, as `kubectl apply` would."""
    kinds = dynamic.DynamicClient(connection)
    for each in yaml.safe_load_all(JOB_FILE.read_text()):
        kind = kinds.resources.get(api_version=each["apiVersion"], kind=each["kind"])
        kind.create(body=each, namespace=NAMESPACE)


def clean(cluster: DemoCluster) -> None:
    """Remove the demo from a cluster, except the CRD: others may have jobs by now."""
    with config.new_client_from_config(cluster.kubeconfig) as connection:
        check_namespaces(client.CoreV1Api(connection), cluster.is_ours)
    helm = helm_python.Config(kubeconfig_path=cluster.kubeconfig, namespace=SYSTEM_NAMESPACE)
    try:
        helm.uninstall(RELEASE, ignore_not_found=True, **_WAITING)
    except helm_python.HelmError as error:
        raise DemoError(f"Helm could not uninstall the chart: {error}") from error
    finally:
        helm.close()
    with config.new_client_from_config(cluster.kubeconfig) as connection:
        for name in (NAMESPACE, SYSTEM_NAMESPACE):
            delete_namespace(client.CoreV1Api(connection), name)
    print(f"the demo is gone from the cluster; `kubectl delete crd {CRD}` removes MemTune's kind and every job of it")


def run(name: str, *words: str) -> int:
    """Run the demo and return its exit code; errors are printed in one line."""
    try:
        (clean if words == ("clean",) else demo)(CLUSTERS[name]())
    except KeyboardInterrupt:
        return INTERRUPTED
    except DemoError as error:
        print(f"demo: {error}", file=sys.stderr)
    except ApiException as error:
        print(f"demo: the API server refused: {refused(error)}", file=sys.stderr)
    except HTTPError as error:
        print(f"demo: no answer from the API server: {error}", file=sys.stderr)
    else:
        return 0
    return 1


def refused(error: ApiException) -> str:
    """The API server's message, if it sent one."""
    try:
        return str(json.loads(error.body or "")["message"])
    except (ValueError, TypeError, KeyError):
        return f"{error.status} {error.reason}"


if __name__ == "__main__":
    sys.exit(run(*sys.argv[1:]))
