"""The HTTP server of the dashboards page: serves the page and the chart's dashboards, and proxies Prometheus."""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from dev.cluster.api import tcp_answers
from dev.cluster.layout import CHECKOUT, DASHBOARDS_PORT, LOGS
from dev.cluster.monitoring import page, prometheus
from dev.cluster.supervisor import Part

ADDRESS = "127.0.0.1"
URL = f"http://{ADDRESS}:{DASHBOARDS_PORT}"
_DASHBOARDS = CHECKOUT / "charts" / "memtune" / "dashboards"


def dashboards() -> Part:
    argv = [sys.executable, "-m", "dev.cluster.monitoring.dashboards"]
    return Part("dashboards", argv, LOGS / "dashboards.log", ready=lambda: tcp_answers(ADDRESS, DASHBOARDS_PORT))


class _Handler(SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if path.startswith("/api/"):
            self._ask_prometheus()
        elif path == "/dashboards":
            self._answer(
                200, json.dumps([json.loads(file.read_text()) for file in sorted(_DASHBOARDS.glob("*.json"))]).encode()
            )
        else:
            super().do_GET()

    def translate_path(self, path: str) -> str:
        """Map a URL to a file; other URLs are dashboards and get the page, which routes them."""
        root = page.directory().resolve()
        file = (root / urlsplit(path).path.lstrip("/")).resolve()
        return str(file if file.is_file() and file.is_relative_to(root) else root / "index.html")

    def log_request(self, *_: object) -> None:
        """No access log: every panel polls every few seconds."""

    def _ask_prometheus(self) -> None:
        try:
            with urllib.request.urlopen(prometheus.URL + self.path, timeout=60) as answer:
                self._answer(answer.status, answer.read())
        except urllib.error.HTTPError as error:
            self._answer(error.code, error.read())
        except OSError as error:
            self._answer(502, json.dumps({"status": "error", "error": f"Prometheus does not answer: {error}"}).encode())

    def _answer(self, code: int, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    ThreadingHTTPServer((ADDRESS, DASHBOARDS_PORT), _Handler).serve_forever()
