"""`memtune status|watch|report|logs` against a real API server, and a real job from its prediction to its logs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from job_with_history import NAME, ended_well, job_with_history
from kubernetes import client
from operator_process import Jobs
from pods import Cluster, container, eventually, pod
from tiny_rehearsal import tiny_rehearsal

from dev.cluster import binaries
from memtune.api import API_VERSION, KIND
from memtune.wire.run import RunKind
from memtune_operator.pods import names

_PATHS = os.pathsep.join(path for path in sys.path if path)
_ENVIRONMENT = {**os.environ, "PYTHONPATH": _PATHS, "COLUMNS": "100"}
_MEMTUNE = (sys.executable, "-m", "memtune_cli.main")
Cli = Callable[..., "subprocess.CompletedProcess[str]"]
Watching = Callable[[str], AbstractContextManager["subprocess.Popen[str]"]]


@pytest.fixture
def flags(kubeconfig: str, namespace: str) -> tuple[str, ...]:
    return "--kubeconfig", kubeconfig, "-n", namespace


@pytest.fixture
def memtune(flags: tuple[str, ...]) -> Cli:
    """The command as a user calls it, in the test's namespace unless told otherwise behind it."""

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        command = [*_MEMTUNE, words[0], *flags, *words[1:]]
        return subprocess.run(command, env=_ENVIRONMENT, capture_output=True, text=True, timeout=500, check=False)

    return call


@pytest.fixture
def watching(flags: tuple[str, ...]) -> Watching:
    """`memtune watch` while it goes on."""

    @contextmanager
    def start(name: str) -> Iterator[subprocess.Popen[str]]:
        command = [*_MEMTUNE, "watch", name, *flags]
        with subprocess.Popen(command, env=_ENVIRONMENT, stdout=subprocess.PIPE, text=True) as process:
            try:
                yield process
            finally:
                process.kill()

    return start


def tell(jobs: Jobs, manifest: dict[str, Any]) -> None:
    """The object as its operator would have left it, where none runs."""
    spec = {name: manifest[name] for name in ("apiVersion", "kind", "spec")}
    jobs.apply({**spec, "metadata": {"name": NAME}})
    jobs.write_status(NAME, manifest["status"])


def test_job_views_survive_the_api_server(jobs: Jobs, memtune: Cli, tmp_path: Path) -> None:
    tell(jobs, job_with_history())
    shown = memtune("status", NAME)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "* 2  bf16-z1-none-mb1x32  fits  34,012 tokens/s" in shown.stdout
    assert "Checkpoint  102,400 samples in /checkpoints" in shown.stdout
    page = tmp_path / "page.html"
    assert memtune("report", NAME, "-o", str(page)).returncode == 0
    assert page.read_text().count("<svg") == 5
    gone = memtune("logs", NAME)
    assert gone.returncode == 2
    assert "the pods of llama-7b-train-2 are gone" in gone.stderr


def test_a_watch_ends_with_the_job(jobs: Jobs, memtune: Cli) -> None:
    tell(jobs, ended_well())
    watched = memtune("watch", NAME)
    assert watched.returncode == 0, watched.stderr
    assert f"[Succeeded] {ended_well()['status']['message']}" in watched.stdout


def token_of_nobody(cluster: Cluster, namespace: str) -> str:
    """A token of a ServiceAccount that may do nothing."""
    asked = client.AuthenticationV1TokenRequest(spec=client.V1TokenRequestSpec(audiences=None))
    token: str = cluster.core.create_namespaced_service_account_token("default", namespace, asked).status.token
    return token


@pytest.mark.slow
def test_api_errors_are_one_sentence(
    cluster: Cluster, jobs: Jobs, memtune: Cli, kubeconfig: str, namespace: str, tmp_path: Path
) -> None:
    absent = memtune("status", "nobody")
    assert absent.stderr == (
        f"memtune: there is no MemoryTunedJob nobody in namespace {namespace}; "
        "`kubectl get mtj -A` lists those that there are\n"
    )
    assert "there is no namespace nowhere on https://" in memtune("status", "nobody", "-n", "nowhere").stderr
    tell(jobs, job_with_history())
    file = tmp_path / "kubeconfig"
    written = yaml.safe_load(Path(kubeconfig).read_text())
    for token, said in (("odd", "does not know who you are"), (token_of_nobody(cluster, namespace), "cannot get")):
        users = [{"name": user["name"], "user": {"token": token}} for user in written["users"]]
        file.write_text(yaml.safe_dump({**written, "users": users}))
        for command in ("status", "watch", "report", "logs"):
            refused = memtune(command, NAME, "--kubeconfig", str(file))
            assert (refused.returncode, refused.stderr.count("\n")) == (2, 1), refused.stderr
            assert said in refused.stderr


def test_kubectl_finds_the_plugin(jobs: Jobs, kubeconfig: str, namespace: str, tmp_path: Path) -> None:
    tell(jobs, job_with_history())
    kubectl_command = shutil.which("kubectl") or binaries.command("kubectl")
    plugin = tmp_path / "kubectl-memtune"
    plugin.write_text(f"#!{sys.executable}\nimport sys\nfrom memtune_cli.main import main\nsys.exit(main())\n")
    plugin.chmod(0o755)
    environment = {
        **_ENVIRONMENT,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "KUBECONFIG": kubeconfig,
    }

    def kubectl(*words: str) -> str:
        command = [kubectl_command, "memtune", *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True).stdout

    assert kubectl("status", NAME, "-n", namespace).startswith(f"{namespace}/{NAME}  Running")
    assert kubectl("status", "--help").startswith("usage: kubectl memtune status ")


_RANKS = """
import http.server
VALUES = {b"hbm_total_bytes": 8 << 30, b"hbm_peak_reserved_bytes": 6 << 30, b"step_seconds_count": 17}
text = b"".join(
    b'memtune_%s{device="virtual",rank="%d"} %d\\n' % (name, rank, value)
    for name, value in VALUES.items()
    for rank in range(8)
)
class Metrics(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text)
print("[rank 5] listening", flush=True)
http.server.HTTPServer(("", 9400), Metrics).serve_forever()
"""


def pod_of(job: dict[str, Any]) -> dict[str, Any]:
    """The pod of the second attempt, which tells of its ranks."""
    run = f"{NAME}-train-2"
    body = pod(f"{run}-0", container(_RANKS, name="trainer"), labels=names.run_labels(NAME, RunKind.TRAIN, 2))
    body["metadata"]["labels"][names.LABEL_INDEX] = "0"
    owner = {"apiVersion": API_VERSION, "kind": KIND, "name": NAME, "uid": job["metadata"]["uid"], "controller": True}
    body["metadata"]["ownerReferences"] = [owner]
    return body


def test_rank_metrics_are_read_through_the_api_server(
    cluster: Cluster, jobs: Jobs, memtune: Cli, watching: Watching, namespace: str
) -> None:
    tell(jobs, job_with_history())
    name = cluster.create(namespace, pod_of(jobs.read(NAME)))
    cluster.wait_for_phase(namespace, name, "Running")
    with watching(NAME) as process:
        assert process.stdout is not None
        heard = next(line for line in process.stdout if "step 17" in line)
        assert f"{NAME}-train-2: step 17, rank 0 is the fullest with 6.0/8.0Gi" in heard
        jobs.write_status(NAME, ended_well()["status"])
        rest = process.stdout.read()
        assert process.wait(timeout=60) == 0
    assert "[Succeeded]" in rest
    logs = memtune("logs", NAME, "--rank", "5")
    assert (logs.returncode, logs.stdout) == (0, "[rank 5] listening\n")


@pytest.mark.slow
@pytest.mark.usefixtures("operator")
def test_a_job_is_watched_from_its_probe_to_its_end(jobs: Jobs, memtune: Cli, tmp_path: Path) -> None:
    jobs.apply(tiny_rehearsal(8))
    eventually(lambda: jobs.status("tiny"), "the operator to take the job up")
    watched = memtune("watch", "tiny")
    assert watched.returncode == 0, watched.stdout + watched.stderr
    assert re.search(r"\d\d:\d\d:\d\d  probe 1 \(fp32-ddp-none-\S+\) succeeded: measured ", watched.stdout)
    assert "  trained to its end" in watched.stdout
    logs = memtune("logs", "tiny")
    assert (logs.returncode, logs.stderr) == (0, "")
    assert "[rank 0] step 1 loss" in logs.stdout
    page = tmp_path / "page.html"
    assert memtune("report", "tiny", "-o", str(page)).returncode == 0
    assert "a rehearsal" in page.read_text()
