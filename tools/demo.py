"""`make demo`: the whole product on this machine, from nothing to a job that ran out of memory and got up again.

A Kubernetes of two nodes, our images, the chart by Helm, Prometheus and the dashboards; then the quickstart, watched
live. Everything stays up to be looked at. A second call does it again with a fresh job; `make demo-clean` removes
it all.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import helm_python
import yaml
from kubernetes import client, config, dynamic
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from memtune.spec import GROUP, PLURAL, VERSION

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from devcluster import binaries  # noqa: E402 - the checkout's devcluster is no package
from devcluster.builds import OURS, image_id, image_name  # noqa: E402
from devcluster.cli import INTERRUPTED  # noqa: E402
from devcluster.layout import DASHBOARDS_PORT  # noqa: E402

CHART = ROOT / "charts" / "memtune"
JOB_FILE = ROOT / "examples" / "quickstart.yaml"
REPORT = ROOT / "build" / "demo" / "report.html"
RELEASE = "memtune"
JOB = "quickstart"
# The job's namespace is made and removed with it; the operator has its own, as a platform team would do it.
NAMESPACE = "memtune-demo"
SYSTEM_NAMESPACE = "memtune-system"
DELETION_SECONDS = 120
INSTALLATION_SECONDS = 180


class DemoError(Exception):
    """What keeps the demo from going on, shown without a traceback."""


def main() -> None:
    """Set everything up, run the quickstart, tell what came of it."""
    if os.environ.get("MEMTUNE_KUBECONFIG"):
        raise DemoError("MEMTUNE_KUBECONFIG names a cluster of yours; the demo sets up its own: unset it")
    began = time.monotonic()
    with step("A Kubernetes of two nodes with 8 virtual GPUs each"):
        devcluster("up", "--nodes", "2")
        kubeconfig = answer("kubeconfig")
    with step("The images of operator and runner"):
        devcluster("load", *OURS)
    with step("The chart, by Helm"):
        install(kubeconfig)
    with step("Prometheus and the dashboards"):
        pages = answer("dashboards")
        prometheus = answer("prometheus")
    applied = step(f"A fresh namespace, and {JOB_FILE.relative_to(ROOT)} in it")
    with applied, config.new_client_from_config(kubeconfig) as connection:
        make_namespace(client.CoreV1Api(connection))
        # The claim of an earlier demo is gone: the volume that it leaves is offered anew.
        devcluster("up")
        apply(connection)
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    report = ("report", JOB, "-o", str(REPORT), "--prometheus", prometheus)
    for words in (("watch", JOB), ("status", JOB), report):
        memtune(*words, kubeconfig=kubeconfig)
    with config.new_client_from_config(kubeconfig) as connection:
        check_recovery(connection)
    print(
        f"\nThe demo took {time.monotonic() - began:.0f} s. What stays until `make demo-clean`:\n"
        f"  dashboards  {pages}\n"
        f"  Prometheus  {prometheus}\n"
        f"  report      {REPORT}\n"
        f"  the job     {binaries.command('kubectl')} --kubeconfig {kubeconfig} -n {NAMESPACE} describe mtj {JOB}\n"
        f"From another machine: ssh -L {DASHBOARDS_PORT}:127.0.0.1:{DASHBOARDS_PORT} MACHINE shows the dashboards."
    )


@contextmanager
def step(title: str) -> Iterator[None]:
    """Tell what happens now and, when it is done, how long it took."""
    print(f"\n== {title}", flush=True)
    began = time.monotonic()
    yield
    print(f"   {time.monotonic() - began:.1f} s", flush=True)


def devcluster(*words: str) -> None:
    """One of its commands, with what it says going straight through."""
    _run(words, None)


def answer(*words: str) -> str:
    """The last line that one of its commands prints."""
    return _run(words, subprocess.PIPE).splitlines()[-1]


def _run(words: Sequence[str], stdout: int | None) -> str:
    command = [sys.executable, "-m", "devcluster", *words]
    done = subprocess.run(command, cwd=ROOT, text=True, stdout=stdout, check=False)
    if done.returncode:
        raise DemoError(f"`devcluster {' '.join(words)}` ended with exit code {done.returncode}")
    return done.stdout or ""


def memtune(*words: str, kubeconfig: str) -> None:
    """One of our own command's subcommands, as a user has it."""
    command: Sequence[str] = [str(Path(sys.executable).parent / "memtune"), *words]
    print(f"\n$ memtune {' '.join(words)}", flush=True)
    done = subprocess.run([*command, "-n", NAMESPACE, "--kubeconfig", kubeconfig], cwd=ROOT, check=False)
    if done.returncode:
        raise DemoError(f"`memtune {' '.join(words)}` ended with exit code {done.returncode}")


def check_recovery(connection: client.ApiClient) -> None:
    """The demo shows a job that ran out of memory and got up again, or it has failed."""
    jobs: Any = client.CustomObjectsApi(connection)
    status = jobs.get_namespaced_custom_object(GROUP, VERSION, NAMESPACE, PLURAL, JOB)["status"]
    verdicts = [attempt.get("verdict") for attempt in status["attempts"]]
    if verdicts != ["device-oom", "succeeded"]:
        raise DemoError(f"an out-of-memory and its recovery were to be seen, and the attempts ended as {verdicts}")


def install(kubeconfig: str) -> None:
    """The release, or its upgrade to what is in the checkout now."""
    operator = image_name("operator")
    # The tag stays when the image changes: what it is of has to be seen, or no pod is replaced.
    values = {
        "image": image(operator),
        "runnerImage": image(image_name("runner")),
        "podAnnotations": {"memtune.dev/image": image_id(operator)},
    }
    helm = helm_python.Config(kubeconfig_path=kubeconfig, namespace=SYSTEM_NAMESPACE)
    waiting: dict[str, Any] = {"wait": "watcher", "timeout": INSTALLATION_SECONDS}
    try:
        states = [found["status"] for found in helm.list(all_states=True) if found["name"] == RELEASE]
        if states == ["deployed"]:
            helm.upgrade(CHART, RELEASE, values, **waiting)
            return
        if states:
            # Of a demo that was killed: Helm believes that somebody is still at work on it.
            helm.uninstall(RELEASE, **waiting)
        helm.install(CHART, RELEASE, values, create_namespace=True, **waiting)
    except helm_python.HelmError as error:
        raise DemoError(f"Helm could not install the chart: {error}") from error
    finally:
        helm.close()


def image(name: str) -> dict[str, str]:
    """An image as the chart's values have it."""
    repository, _, tag = name.rpartition(":")
    return {"repository": repository, "tag": tag}


def make_namespace(core: Any) -> None:
    """The demo's namespace, without what an earlier demo left in it."""
    until = time.monotonic() + DELETION_SECONDS
    while NAMESPACE in (each.metadata.name for each in core.list_namespace().items):
        if time.monotonic() > until:
            raise DemoError(
                f"the namespace {NAMESPACE} of an earlier demo does not go away; `make demo-clean` removes it"
            )
        try:
            core.delete_namespace(NAMESPACE)
        except ApiException as error:
            if error.status not in (404, 409):
                raise
        time.sleep(1)
    core.create_namespace({"metadata": {"name": NAMESPACE}})


def apply(connection: Any) -> None:
    """Every object of the quickstart, as `kubectl apply` would make it."""
    kinds = dynamic.DynamicClient(connection)
    for each in yaml.safe_load_all(JOB_FILE.read_text()):
        kind = kinds.resources.get(api_version=each["apiVersion"], kind=each["kind"])
        kind.create(body=each, namespace=NAMESPACE)


def run() -> int:
    """The exit code of the demo; what kept it from going on is told in one line."""
    try:
        main()
    except KeyboardInterrupt:
        print("demo: interrupted; run `make demo` again, or `make demo-clean`", file=sys.stderr)
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
    """What the API server says of it, if it says anything."""
    try:
        return str(json.loads(error.body or "")["message"])
    except (ValueError, TypeError, KeyError):
        return f"{error.status} {error.reason}"


if __name__ == "__main__":
    sys.exit(run())
