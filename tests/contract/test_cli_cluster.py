"""`memtune status|watch|report|logs` as a user calls them: what they print, and how a cluster refuses."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from api_answers import ApiServer, api_server, events, found, listed, refusal
from cli_jobs import refused
from terminals import Terminal
from told_job import MESSAGE, NAME, ended_well, still_probing, told_job

from memtune.report import Ending, Report
from memtune_cli.display import Display
from memtune_cli.main import main

JOBS = "/apis/memtune.dev/v1alpha1/namespaces/research/memorytunedjobs"
JOB = f"{JOBS}/{NAME}"
PODS = "/api/v1/namespaces/research/pods"


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with api_server() as running:
        running.answer(JOB, found(told_job()))
        yield running


@pytest.fixture
def flags(server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
    return "--kubeconfig", server.kubeconfig(tmp_path)


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
    server.answer(JOB.replace("research", "other"), found(told_job()))
    assert main(["status", NAME, "-n", "other"]) == 0
    assert "MemoryTunedJob other" not in capsys.readouterr().out


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
        (refusal(404, f'memorytunedjobs.memtune.dev "{NAME}" not found'), f"there is no MemoryTunedJob {NAME} in name"),
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
    said = refused(capsys, command, NAME, *flags)
    assert message in said
    assert said.count("\n") == 1


def test_a_namespace_that_is_not_there_is_named(server: ApiServer, flags: Flags, capsys: Captured) -> None:
    server.answer(JOB, refusal(404, f'memorytunedjobs.memtune.dev "{NAME}" not found'))
    server.answer("/api/v1/namespaces/research", refusal(404, 'namespaces "research" not found'))
    assert "there is no namespace research" in refused(capsys, "status", NAME, *flags)
    server.answer("/api/v1/namespaces/research", refusal(403, "you may not"))
    assert f"there is no MemoryTunedJob {NAME}" in refused(capsys, "status", NAME, *flags)


@pytest.mark.usefixtures("flags")
def test_bad_kubeconfigs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    assert "~/.kube/config: there is no such kubeconfig" in refused(capsys, "status", NAME)
    assert "none: there is no such kubeconfig" in refused(capsys, "status", NAME, "--kubeconfig", "none")
    file = tmp_path / "odd"
    for text in ("a: [", "3", "", "clusters: 3", "a: b", "clusters: [3]\ncontexts: []\nusers: []", "\x00"):
        file.write_text(text)
        assert "this kubeconfig" in refused(capsys, "status", NAME, "--kubeconfig", str(file)), text
    file.chmod(0)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path))
    assert "this kubeconfig cannot be used" in refused(capsys, "status", NAME)


def test_a_context_that_is_not_there_is_refused(flags: Flags, capsys: Captured) -> None:
    said = refused(capsys, "status", NAME, *flags, "--context", "there")
    assert "Expected object with name there in" in said


def test_a_server_that_does_not_answer_is_named(server: ApiServer, flags: Flags, capsys: Captured) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{taken.getsockname()[1]}"
        Path(flags[1]).write_text(Path(flags[1]).read_text().replace(server.address, nobody))
        said = refused(capsys, "status", NAME, *flags)
    assert f"no answer from {nobody}" in said


@pytest.mark.parametrize("arguments", [["a/b"], ["A"], [NAME, "-n", "../x"], [""]])
def test_what_is_no_name_is_refused(arguments: list[str], flags: Flags, server: ApiServer, capsys: Captured) -> None:
    assert "cannot be a name" in refused(capsys, "status", *arguments, *flags)
    assert server.asked == []


def test_what_is_not_installed_is_named(flags: Flags) -> None:
    code = (
        "import sys; sys.modules['kubernetes'] = None\n"
        "from memtune_cli.main import main\n"
        f"sys.exit(main(['status', {NAME!r}, '--kubeconfig', {flags[1]!r}]))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 2
    assert (
        ended.stderr == "memtune: memtune status needs kubernetes, which is not installed; pip install 'memtune[cli]'\n"
    )


@pytest.fixture
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memtune_cli.watch._RECONNECT_SECONDS", 0.0)


@pytest.mark.usefixtures("_at_once")
def test_a_watch_goes_on_after_every_drop_until_the_job_ends(server: ApiServer, flags: Flags, capsys: Captured) -> None:
    probing, running, done = still_probing(), told_job(), ended_well()
    server.answer(JOB, found(probing))
    server.answer(JOBS, listed(probing), refusal(503, "overloaded"), listed(running))
    expired = {"kind": "Status", "code": 410, "message": "too old resource version"}
    server.answer(
        f"{JOBS}?watch",
        events(("MODIFIED", probing)),
        events(("ERROR", expired)),
        events(("MODIFIED", running), ("MODIFIED", done)),
    )
    assert main(["watch", NAME, *flags]) == 0
    said = capsys.readouterr().out
    assert all(
        f"fieldSelector=metadata.name%3D{NAME}" in asked for asked in server.asked if JOBS in asked and JOB not in asked
    )
    assert said.count("probe 3 measures bf16-z2-none-mb2x16") == 1
    assert said.count("refused: overloaded; trying again") == 1
    assert said.count("the API server answers again") == 1
    assert said.count(f"[Running] {MESSAGE}") == 1
    assert said.count("research/llama-7b  Succeeded") == 1, "it ends with the whole story"


def test_the_end_of_a_watch_is_the_end_of_the_job(server: ApiServer, flags: Flags, capsys: Captured) -> None:
    server.answer(JOBS, listed(told_job(phase="Failed")))
    assert main(["watch", NAME, *flags]) == 1
    server.answer(JOBS, listed())
    assert main(["watch", NAME, *flags]) == 1
    assert f"{NAME} was deleted" in capsys.readouterr().out
    server.answer(JOBS, listed(told_job()))
    server.answer(f"{JOBS}?watch", events(("DELETED", told_job())))
    assert main(["watch", NAME, *flags]) == 1
    assert f"{NAME} was deleted" in capsys.readouterr().out


def metrics(steps: int) -> tuple[int, str]:
    """What the pod of eight ranks answers."""
    values = {"hbm_total_bytes": 8e10, "hbm_peak_reserved_bytes": 6e10, "step_seconds_count": steps}
    lines = (f'memtune_{name}{{rank="{rank}"}} {value}' for rank in range(8) for name, value in values.items())
    return 200, "\n".join(lines)


HEARD = f"{PODS}/{NAME}-train-2-0:9400/proxy/metrics"


def until_heard(server: ApiServer) -> None:
    """The job goes on until its ranks have been asked twice."""

    def job() -> tuple[int, str]:
        heard = sum(1 for asked in server.asked if asked == HEARD)
        return listed(ended_well() if heard > 1 else told_job())

    server.answer(JOBS, job)
    server.answer(f"{JOBS}?watch", events())


@pytest.fixture
def _looking_often(_at_once: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memtune_cli.watch._LOOK_SECONDS", 0.0)


@pytest.mark.usefixtures("_looking_often")
def test_without_a_terminal_ranks_are_told_of_in_lines(server: ApiServer, flags: Flags, capsys: Captured) -> None:
    until_heard(server)
    server.answer(HEARD, refusal(503, "the pod does not listen yet"), metrics(17))
    assert main(["watch", NAME, *flags]) == 0
    said = f"{NAME}-train-2: step 17, rank 0 is the fullest with 55.9/74.5 GiB"
    assert capsys.readouterr().out.count(said) == 1


@pytest.mark.usefixtures("_looking_often")
def test_who_may_not_hear_the_ranks_is_told_so_once(
    server: ApiServer, flags: Flags, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, told = 'User "eve" cannot get resource "pods/proxy"', list[str]()
    monkeypatch.setattr(Display, "tell", lambda _, line: told.append(line))
    said = f"the metrics of the ranks stay unknown: {asked}"
    server.answer(HEARD, refusal(403, asked))
    server.answer(JOBS, lambda: listed(ended_well() if said in told else told_job()))
    server.answer(f"{JOBS}?watch", events())
    assert main(["watch", NAME, *flags]) == 0
    assert (told.count(said), server.asked.count(HEARD)) == (1, 1)


@pytest.mark.usefixtures("_looking_often")
def test_on_a_terminal_the_page_is_drawn_anew(server: ApiServer, flags: Flags, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", terminal)
    until_heard(server)
    server.answer(HEARD, metrics(17))
    assert main(["watch", NAME, *flags]) == 0
    drawn = terminal.getvalue().split("\x1b[J")
    assert any("step 17" in page and "55.9/74.5 GiB" in page for page in drawn)
    assert "Next" in drawn[-1]
    assert "Next" not in drawn[-2], "what stays is the story alone"


def pod(number: int, index: int = 0, **state: Any) -> dict[str, Any]:
    """A pod of a train run; its ranks share the node."""
    run = f"{NAME}-train-{number}"
    owner = {"kind": "MemoryTunedJob", "name": NAME, "uid": "0b5e", "controller": True}
    labels = {"memtune.dev/job": NAME, "memtune.dev/run": run, "memtune.dev/index": str(index)}
    return {
        "metadata": {"name": f"{run}-{index}", "uid": f"{run}-{index}", "labels": labels, "ownerReferences": [owner]},
        "spec": {"containers": [{"name": "sidecar"}, {"name": "trainer"}]},
        "status": {"phase": "Failed", "containerStatuses": [{"name": "trainer", "state": state}]},
    }


def died(code: int, rank: int) -> dict[str, Any]:
    report = Report(Ending.DEVICE_OOM, code, rank=rank, message="no more memory").to_json()
    return {"terminated": {"exitCode": code, "message": json.dumps(report), "finishedAt": "2026-03-01T13:48:10Z"}}


def test_the_failing_rank_comes_first(server: ApiServer, flags: Flags, capsys: Captured) -> None:
    server.answer(PODS, listed(pod(1, **died(85, rank=5))))
    server.answer(f"{PODS}/{NAME}-train-1-0/log", (200, "[rank 4] fine\n[rank 5] too much\nwhat the launcher says\n"))
    assert main(["logs", NAME, *flags]) == 0
    assert capsys.readouterr().out == (
        f"==> rank 5 of {NAME}-train-1-0: device-oom: no more memory <==\n[rank 5] too much\n"
        f"==> the others of {NAME}-train-1-0 <==\n[rank 4] fine\nwhat the launcher says\n"
    )
    assert any("container=trainer" in asked for asked in server.asked)
    assert main(["logs", NAME, *flags, "--rank", "4"]) == 0
    assert capsys.readouterr().out == "[rank 4] fine\n"


def test_of_two_nodes_the_failing_one_comes_first(server: ApiServer, flags: Flags, capsys: Captured) -> None:
    job = told_job()
    job["spec"]["resources"] |= {"nodes": 2, "gpusPerNode": 4}
    server.answer(JOB, found(job))
    server.answer(PODS, listed(pod(1, 0, terminated={"exitCode": 1}), pod(1, 1, **died(85, rank=6))))
    for index in (0, 1):
        server.answer(f"{PODS}/{NAME}-train-1-{index}/log", (200, f"[rank {4 * index + 2}] said\n"))
    assert main(["logs", NAME, *flags, "--run", "train-1"]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("[")] == [
        "[rank 6] said",
        "[rank 2] said",
    ]
    assert main(["logs", NAME, *flags, "--rank", "2"]) == 0
    assert capsys.readouterr().out == "[rank 2] said\n"


def test_a_run_that_goes_on_is_followed(
    server: ApiServer, flags: Flags, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memtune_cli.logs._LOOK_AGAIN_SECONDS", 0.0)
    server.answer(PODS, listed(pod(1, **died(85, rank=5)), pod(2, running={})))
    waiting = refusal(400, 'container "trainer" in pod "x" is waiting to start: PodInitializing')
    long_line = "x" * 300_000
    server.answer(f"{PODS}/{NAME}-train-2-0/log?follow", waiting, (200, f"[rank 0] step 1\n{long_line}"))
    assert main(["logs", NAME, *flags, "--follow"]) == 0
    assert capsys.readouterr().out == f"[rank 0] step 1\n{long_line}\n"


def test_logs_that_cannot_be_shown_are_explained(server: ApiServer, flags: Flags, capsys: Captured) -> None:
    server.answer(PODS, listed(pod(2, waiting={})))
    assert "has no run train-9; its runs are: probe-1, " in refused(capsys, "logs", NAME, *flags, "--run", "train-9")
    assert "the pods of llama-7b-train-1 are gone" in refused(capsys, "logs", NAME, *flags, "--run", "train-1")
    assert "has ranks 0 to 7, not 8" in refused(capsys, "logs", NAME, *flags, "--rank", "8")
    server.answer(f"{PODS}/{NAME}-train-2-0/log", refusal(400, 'container "trainer" is waiting to start'))
    assert "is waiting to start" in refused(capsys, "logs", NAME, *flags)
    server.answer(JOB, found(told_job(probes=None, attempts=None)))
    assert "has started no run yet" in refused(capsys, "logs", NAME, *flags)


def test_a_report_is_written_where_it_is_asked_for(flags: Flags, tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "page.html"
    assert main(["report", NAME, *flags, "-o", str(file)]) == 0
    assert file.read_text().startswith("<!doctype html>")
    assert capsys.readouterr().out == f"{file}: the report of research/{NAME}\n"
    assert "cannot be written" in refused(capsys, "report", NAME, *flags, "-o", str(tmp_path / "none" / "page.html"))


def test_a_report_asks_a_prometheus(server: ApiServer, flags: Flags, tmp_path: Path, capsys: Captured) -> None:
    asking = ["report", NAME, *flags, "-o", str(tmp_path / "page.html"), "--prometheus"]
    values = [[1_772_373_000, "5.1e10"], [1_772_373_300, "NaN"], [1_772_373_500, "5.2e10"]]
    result = [{"metric": {"run": f"{NAME}-train-2"}, "values": values}]
    server.answer("/api/v1/query_range", found({"status": "success", "data": {"result": result}}))
    assert main([*asking, server.address]) == 0
    assert 'class="series0"' in (tmp_path / "page.html").read_text()
    capsys.readouterr()
    server.answer("/api/v1/query_range", found({"status": "success", "data": {"result": []}}))
    assert "has no memory of research/llama-7b" in refused(capsys, *asking, server.address)
    for answer in ((200, "<html>"), found([]), found({"status": "success"})):
        server.answer("/api/v1/query_range", answer)
        assert "is no Prometheus" in refused(capsys, *asking, server.address)
    server.answer("/api/v1/query_range", (422, "bad"))
    assert "refused the query: 422" in refused(capsys, *asking, server.address)
    assert "is no address" in refused(capsys, *asking, "prometheus:9090")
    assert "no answer from http://127.0.0.1:1" in refused(capsys, *asking, "http://127.0.0.1:1")
