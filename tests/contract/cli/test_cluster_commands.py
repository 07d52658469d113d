"""The commands that read a cluster: which cluster they find, their errors, and the output of status and report."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from cli_jobs import ROOT, refusal_message
from fake_api_server import JOB, Answer, ApiServer, found, refusal
from job_with_history import NAME, job_with_history

from memtune_cli.main import main

Flags = tuple[str, str]
Captured = pytest.CaptureFixture[str]


def test_status_is_a_page_or_a_document(flags: Flags, capsys: Captured) -> None:
    assert main(["status", NAME, *flags]) == 0
    assert capsys.readouterr().out.startswith("research/llama-7b  Running\n")
    assert main(["status", NAME, *flags, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["command"], document["status"]["phase"]) == ("status", "Running")
    assert main(["status", NAME, *flags, "--format", "yaml"]) == 0
    assert "command: status\n" in capsys.readouterr().out


def test_the_kubeconfig_is_found_as_kubectl_finds_it(
    server: ApiServer, flags: Flags, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'none'}:{flags[1]}")
    assert main(["status", NAME]) == 0
    monkeypatch.delenv("KUBECONFIG")
    home = tmp_path / "nobody" / ".kube"
    home.mkdir(parents=True)
    Path(server.kubeconfig(home)).rename(home / "config")
    assert main(["status", NAME, "--context", "here"]) == 0
    other = JOB.replace("research", "other")
    server.answer(other, found(job_with_history()))
    assert main(["status", NAME, "-n", "other"]) == 0
    capsys.readouterr()
    assert server.asked == [JOB, JOB, other]


def test_a_context_may_have_no_user(flags: Flags, capsys: Captured) -> None:
    file = Path(flags[1])
    file.write_text(file.read_text().replace("    user: u\n", ""))
    assert main(["status", NAME, *flags]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("command", ["status", "watch", "report", "logs"])
@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((404, "404 page not found\n"), "MemTune is not installed there; install its chart first"),
        (refusal(404, "it is not found", NAME), f"there is no MemoryTunedJob {NAME} in name"),
        (refusal(401, "Unauthorized"), "does not know who you are; log in again"),
        (refusal(403, 'User "eve" cannot get resource "memorytunedjobs"'), 'User "eve" cannot get resource'),
        (refusal(500, "etcd is gone"), "refused: etcd is gone"),
        ((200, "<html>"), "no answer from http://127.0.0.1"),
    ],
)
def test_each_refusal_is_one_sentence(
    command: str, answer: tuple[int, str], message: str, server: ApiServer, flags: Flags, capsys: Captured
) -> None:
    server.answer(JOB, answer)
    server.answer("/api/v1/namespaces/research", found({"kind": "Namespace"}))
    said = refusal_message(capsys, command, NAME, *flags)
    assert message in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("command", ["status", "watch", "report", "logs"])
def test_an_interruption_is_silent(
    command: str, server: ApiServer, flags: Flags, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, is_over = threading.Event(), threading.Event()

    def hangs() -> Answer:
        asked.set()
        is_over.wait(60)
        return found(job_with_history())

    # The client is gone before its answer.
    monkeypatch.setattr(server, "handle_error", lambda *_: None)
    server.answer(JOB, hangs)
    paths = os.pathsep.join(str(ROOT / package) for package in ("core", "cli", "operator"))
    # A background process ignores Ctrl-C, and its children inherit that.
    process = subprocess.Popen(
        ["env", "--default-signal=INT", sys.executable, "-m", "memtune_cli.main", command, NAME, *flags],
        env={**os.environ, "PYTHONPATH": paths}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process:
        try:
            assert asked.wait(60)
            process.send_signal(signal.SIGINT)
            assert process.communicate(timeout=60) == ("", "")
        finally:
            process.kill()
            is_over.set()
    assert process.returncode == 130


def test_a_namespace_that_is_not_there_is_named(server: ApiServer, flags: Flags, capsys: Captured) -> None:
    server.answer(JOB, refusal(404, f'memorytunedjobs.memtune.dev "{NAME}" not found', NAME))
    server.answer("/api/v1/namespaces/research", refusal(404, 'namespaces "research" not found'))
    assert "there is no namespace research" in refusal_message(capsys, "status", NAME, *flags)
    server.answer("/api/v1/namespaces/research", refusal(403, "you may not"))
    assert f"there is no MemoryTunedJob {NAME}" in refusal_message(capsys, "status", NAME, *flags)


@pytest.mark.usefixtures("flags")
def test_bad_kubeconfigs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    assert "~/.kube/config: there is no such kubeconfig" in refusal_message(capsys, "status", NAME)
    assert "none: there is no such kubeconfig" in refusal_message(capsys, "status", NAME, "--kubeconfig", "none")
    file = tmp_path / "odd"
    for text in ("a: [", "3", "", "clusters: 3", "a: b", "clusters: [3]\ncontexts: []\nusers: []", "\x00"):
        file.write_text(text)
        said = refusal_message(capsys, "status", NAME, "--kubeconfig", str(file))
        assert f"{file}: this is no" in said, text
        assert not re.search("object|NoneType|indices", said), said
    file.chmod(0)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path))
    assert "this is no way to a cluster" in refusal_message(capsys, "status", NAME)


def test_a_context_that_is_not_there_is_refused(flags: Flags, capsys: Captured) -> None:
    said = refusal_message(capsys, "status", NAME, *flags, "--context", "there")
    assert "Expected object with name there in" in said


def test_a_server_that_does_not_answer_is_named(server: ApiServer, flags: Flags, capsys: Captured) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{taken.getsockname()[1]}"
        Path(flags[1]).write_text(Path(flags[1]).read_text().replace(server.address, nobody))
        said = refusal_message(capsys, "status", NAME, *flags)
    assert f"no answer from {nobody}" in said


@pytest.mark.parametrize("arguments", [["a/b"], ["A"], [NAME, "-n", "../x"], [""]])
def test_an_invalid_name_is_refused(arguments: list[str], flags: Flags, server: ApiServer, capsys: Captured) -> None:
    assert "cannot be a name" in refusal_message(capsys, "status", *arguments, *flags)
    assert server.asked == []


def test_a_report_is_written_where_it_is_asked_for(flags: Flags, tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "page.html"
    assert main(["report", NAME, *flags, "-o", str(file)]) == 0
    assert file.read_text().startswith("<!doctype html>")
    assert capsys.readouterr().out == f"{file}: the report of research/{NAME}\n"
    assert "cannot be written" in refusal_message(
        capsys, "report", NAME, *flags, "-o", str(tmp_path / "none" / "page.html")
    )


def test_a_report_asks_a_prometheus(server: ApiServer, flags: Flags, tmp_path: Path, capsys: Captured) -> None:
    asking = ["report", NAME, *flags, "-o", str(tmp_path / "page.html"), "--prometheus"]
    values = [[1_772_373_000, "5.1e10"], [1_772_373_300, "NaN"], [1_772_373_500, "5.2e10"]]
    result = [{"metric": {"run": f"{NAME}-train-2"}, "values": values}]
    server.answer("/api/v1/query_range", found({"status": "success", "data": {"result": result}}))
    assert main([*asking, server.address]) == 0
    assert 'class="series0"' in (tmp_path / "page.html").read_text()
    capsys.readouterr()
    server.answer("/api/v1/query_range", found({"status": "success", "data": {"result": []}}))
    assert "has no memory of research/llama-7b" in refusal_message(capsys, *asking, server.address)
    for answer in ((200, "<html>"), found([]), found({"status": "success"})):
        server.answer("/api/v1/query_range", answer)
        assert "is no Prometheus" in refusal_message(capsys, *asking, server.address)
    server.answer("/api/v1/query_range", (422, "bad"))
    assert "refused the query: 422" in refusal_message(capsys, *asking, server.address)
    assert "is no address" in refusal_message(capsys, *asking, "prometheus:9090")
    assert "no answer from http://127.0.0.1:1" in refusal_message(capsys, *asking, "http://127.0.0.1:1")
