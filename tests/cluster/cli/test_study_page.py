"""The study that `memtune study` writes, as optuna-dashboard shows it in a browser."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import optuna_dashboard  # type: ignore[import-untyped]  # it has none
import pytest
from browser import browser
from job_with_history import NAME, two_objectives
from pods import eventually

from memtune_cli.main import main


class Server(ThreadingMixIn, WSGIServer):
    """A browser asks for several things at once."""

    daemon_threads = True


class Silent(WSGIRequestHandler):
    def log_message(self, *args: object) -> None:
        """Tests print nothing of their own."""


@pytest.fixture
def dashboard(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "job.json").write_text(json.dumps(two_objectives()))
    url = f"sqlite:///{tmp_path}/study.db"
    assert main(["study", "--state", str(tmp_path), "--storage", url]) == 0
    with make_server("127.0.0.1", 0, optuna_dashboard.wsgi(url), Server, Silent) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/dashboard/studies/1"
        server.shutdown()


def test_a_browser_shows_the_front_and_the_trials(dashboard: str, tmp_path: Path) -> None:
    with browser(tmp_path / "profile") as page:
        page.open(dashboard, 1400)
        drawn = "document.querySelectorAll('.js-plotly-plot .point').length"
        eventually(lambda: page.evaluate(drawn), "the dashboard to draw the trials", 120)
        text = page.evaluate("document.body.innerText")
        assert page.errors == []
    for shown in (NAME, "Pareto Front", "tokens per second", "free bytes", "Hyperparameter Importance"):
        assert shown in text
