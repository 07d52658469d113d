"""A fake API server with prepared answers, for those that a real one gives only when something is wrong."""

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
from told_job import NAME

JOBS = "/apis/memtune.dev/v1alpha1/namespaces/research/memorytunedjobs"
JOB = f"{JOBS}/{NAME}"
PODS = "/api/v1/namespaces/research/pods"

Answer = tuple[int, str]
# An answer, or a function called at each request.
Telling = Answer | Callable[[], Answer]


def refusal(code: int, message: str) -> Answer:
    """Return the metav1.Status of an error."""
    return code, json.dumps({"kind": "Status", "status": "Failure", "code": code, "message": message})


def found(value: Any) -> Answer:
    return 200, json.dumps(value)


def events(*told: tuple[str, Any]) -> Answer:
    """Return a watch with these events, which then ends."""
    return 200, "".join(json.dumps({"type": kind, "object": value}) + "\n" for kind, value in told)


def listed(*items: Any) -> Answer:
    return found({"metadata": {"resourceVersion": "7"}, "items": list(items)})


class ApiServer(ThreadingHTTPServer):
    """Answers by path, including ``?watch`` and ``?follow``. The last answer of a path repeats."""

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
        """Return a kubeconfig for this server."""
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
