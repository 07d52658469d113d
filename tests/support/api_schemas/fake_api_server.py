"""A fake API server with scripted answers, for the errors that a real one gives."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml
from job_with_history import NAME, job_with_history

JOBS = "/apis/memtune.dev/v1alpha1/namespaces/research/memorytunedjobs"
JOB = f"{JOBS}/{NAME}"
PODS = "/api/v1/namespaces/research/pods"

Answer = tuple[int, str]
# An answer that is computed on request.
Telling = Answer | Callable[[], Answer]


def refusal(code: int, message: str, name: str = "") -> Answer:
    """An error with its metav1.Status, which is about the object of this name if there is one."""
    status = {"kind": "Status", "status": "Failure", "code": code, "message": message}
    return code, json.dumps({**status, "details": {"name": name}} if name else status)


def found(value: Any) -> Answer:
    return 200, json.dumps(value)


def events(*told: tuple[str, Any]) -> Answer:
    """A watch that sends these events and then ends."""
    return 200, "".join(json.dumps({"type": kind, "object": value}) + "\n" for kind, value in told)


def listed(*items: Any) -> Answer:
    return found({"metadata": {"resourceVersion": "7"}, "items": list(items)})


class ApiServer(ThreadingHTTPServer):
    """Answers by path, including ``?watch`` and ``?follow``. The last answer of a path is repeated."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: dict[str, list[Telling]] = {}
        self.asked: list[str] = []
        self.patched: list[tuple[str, Any]] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def answer(self, path: str, *answers: Telling) -> None:
        self.answers[path] = list(answers)

    def kubeconfig(self, directory: Path, namespace: str = "research") -> str:
        """A kubeconfig for this server."""
        written = {
            "clusters": [{"name": "c", "cluster": {"server": self.address}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": namespace}}],
            "current-context": "here",
        }
        file = directory / "kubeconfig"
        file.write_text(yaml.safe_dump(written))
        return str(file)


class _Handler(BaseHTTPRequestHandler):
    server: ApiServer

    def do_GET(self) -> None:  # the base class names it
        asked = urlsplit(self.path)
        query = parse_qs(asked.query)
        mark = next((f"?{name}" for name in ("watch", "follow") if name in query), "")
        self.server.asked.append(self.path)
        answers: list[Telling] = self.server.answers.get(asked.path + mark, [(404, "404 page not found\n")])
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        code, text = answer() if callable(answer) else answer
        self.send_response(code)
        self.end_headers()
        self.wfile.write(text.encode())

    def do_PATCH(self) -> None:  # the base class names it
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.patched.append((self.path, body))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@contextmanager
def api_server() -> Iterator[ApiServer]:
    with ApiServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


RUN = f"{NAME}-train-2"
POD = f"{RUN}-pods-0-0-x7k2p"
JOB_SETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/research/jobsets"
BATCH_JOBS = "/apis/batch/v1/namespaces/research/jobs"


def job_of_a_job_set() -> dict[str, Any]:
    """The told job, whose runs are JobSets."""
    job = job_with_history()
    job["spec"]["launcher"] = "JobSet"
    return job


def made(name: str, uid: str, owner: str) -> dict[str, Any]:
    """The metadata of one object in the chain."""
    return {
        "name": name,
        "uid": uid,
        "labels": {"memtune.dev/job": NAME, "memtune.dev/run": RUN},
        "annotations": {"batch.kubernetes.io/job-completion-index": "0"},
        "ownerReferences": [{"uid": owner, "controller": True}],
    }


def answer_with_a_job_set(server: ApiServer, path: str) -> None:
    """The job, and one pod of its second attempt beside one that a stranger has labelled."""
    server.answer(path, found(job_of_a_job_set()))
    server.answer(JOB_SETS, listed({"metadata": made(RUN, "set", "0b5e")}))
    batch_jobs = [made(f"{RUN}-pods-0", "batch", "set"), made("strange", "other", "somebody")]
    server.answer(BATCH_JOBS, listed(*({"metadata": each} for each in batch_jobs)))
    spec = {"spec": {"containers": [{"name": "trainer"}]}, "status": {"phase": "Running"}}
    pods = [made(POD, "pod", "batch"), made("strange-0", "forged", "other")]
    server.answer(PODS, listed(*({"metadata": each, **spec} for each in pods)))
