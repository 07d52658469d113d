"""`memtune watch`: follows a job to its end through lost connections, with its ranks, with and without a terminal."""

from __future__ import annotations

import sys

import pytest
from fake_api_server import (
    JOB,
    JOB_SETS,
    JOBS,
    POD,
    PODS,
    ApiServer,
    answer_with_a_job_set,
    events,
    found,
    job_of_a_job_set,
    listed,
    refusal,
)
from job_with_history import MESSAGE, NAME, ended_well, job_with_history, still_probing
from terminals import Terminal

from memtune_cli.main import main
from memtune_cli.views.display import Display

Flags = tuple[str, str]
Captured = pytest.CaptureFixture[str]


@pytest.fixture
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memtune_cli.commands.watch._RECONNECT_SECONDS", 0.0)


@pytest.mark.usefixtures("_at_once")
def test_a_watch_reconnects_until_the_job_ends(server: ApiServer, flags: Flags, capsys: Captured) -> None:
    probing, running, done = still_probing(), job_with_history(), ended_well()
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
    assert said.count("research/llama-7b  Succeeded") == 1, "it ends with the whole view"


def test_the_end_of_a_watch_is_the_end_of_the_job(server: ApiServer, flags: Flags, capsys: Captured) -> None:
    server.answer(JOBS, listed(job_with_history(phase="Failed")))
    assert main(["watch", NAME, *flags]) == 1
    server.answer(JOBS, listed())
    assert main(["watch", NAME, *flags]) == 1
    assert f"{NAME} was deleted" in capsys.readouterr().out
    server.answer(JOBS, listed(job_with_history()))
    server.answer(f"{JOBS}?watch", events(("DELETED", job_with_history())))
    assert main(["watch", NAME, *flags]) == 1
    assert f"{NAME} was deleted" in capsys.readouterr().out


def metrics(steps: int) -> tuple[int, str]:
    """Return the metrics of a pod with eight ranks."""
    seconds = {"step_seconds_count": steps, "step_seconds_sum": 2.0 * steps}
    values = {"hbm_total_bytes": 8e10, "hbm_peak_reserved_bytes": 6e10, **seconds}
    lines = (f'memtune_{name}{{rank="{rank}"}} {value}' for rank in range(8) for name, value in values.items())
    return 200, "\n".join(lines)


HEARD = f"{PODS}/{NAME}-train-2-0:9400/proxy/metrics"


def until_heard(server: ApiServer, times: int = 3) -> None:
    """Keep the job running until its ranks were scraped this often: by then all answers but the last were read."""

    def job() -> tuple[int, str]:
        heard = sum(1 for asked in server.asked if asked == HEARD)
        return listed(ended_well() if heard >= times else job_with_history())

    server.answer(JOBS, job)
    server.answer(f"{JOBS}?watch", events())


@pytest.fixture
def _looking_often(_at_once: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memtune_cli.commands.watch._LOOK_SECONDS", 0.0)


@pytest.mark.usefixtures("_looking_often")
def test_without_a_terminal_ranks_are_shown_in_lines(server: ApiServer, flags: Flags, capsys: Captured) -> None:
    until_heard(server)
    server.answer(HEARD, refusal(503, "the pod does not listen yet"), metrics(17))
    assert main(["watch", NAME, *flags]) == 0
    said = f"{NAME}-train-2: step 17, 2.0 s a step, rank 0 is the fullest with 55.9/74.5Gi"
    assert capsys.readouterr().out.count(said) == 1


@pytest.mark.usefixtures("_looking_often")
def test_ranks_in_pods_of_a_job_set_are_read(server: ApiServer, flags: Flags, capsys: Captured) -> None:
    answer_with_a_job_set(server, JOB)
    heard = f"{PODS}/{POD}:9400/proxy/metrics"
    over = ended_well()
    over["spec"]["launcher"] = "JobSet"
    server.answer(JOBS, lambda: listed(over if server.asked.count(heard) >= 2 else job_of_a_job_set()))
    server.answer(f"{JOBS}?watch", events())
    job_sets = server.answers[JOB_SETS]
    server.answer(JOB_SETS, refusal(503, "overloaded"), *job_sets)
    server.answer(heard, metrics(17))
    assert main(["watch", NAME, *flags]) == 0
    assert f"{NAME}-train-2: step 17" in capsys.readouterr().out
    assert sum(asked.startswith(JOB_SETS) for asked in server.asked) == 2, "once it is known it is not asked for again"


@pytest.mark.usefixtures("_looking_often")
def test_a_missing_right_to_read_job_sets_is_reported(
    server: ApiServer, flags: Flags, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, told = 'User "eve" cannot list resource "jobsets"', list[str]()
    monkeypatch.setattr(Display, "tell", lambda _, line: told.append(line))
    said = f"the metrics of the ranks stay unknown: {asked}"
    answer_with_a_job_set(server, JOB)
    server.answer(JOB_SETS, refusal(403, asked))
    server.answer(JOBS, lambda: listed(ended_well() if said in told else job_of_a_job_set()))
    server.answer(f"{JOBS}?watch", events())
    assert main(["watch", NAME, *flags]) == 0
    assert told.count(said) == 1


@pytest.mark.usefixtures("_looking_often")
def test_silent_ranks_are_no_longer_shown(
    server: ApiServer, flags: Flags, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memtune_cli.commands.watch._TOLD_EVERY_SECONDS", 0.0)
    until_heard(server, 4)
    server.answer(HEARD, metrics(17), metrics(18), refusal(503, "the pod has ended"))
    assert main(["watch", NAME, *flags]) == 0
    said = capsys.readouterr().out
    assert (said.count("step 17"), said.count("step 18")) == (1, 1)


@pytest.mark.usefixtures("_looking_often")
def test_a_missing_right_to_read_rank_metrics_is_reported_once(
    server: ApiServer, flags: Flags, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, told = 'User "eve" cannot get resource "pods/proxy"', list[str]()
    monkeypatch.setattr(Display, "tell", lambda _, line: told.append(line))
    said = f"the metrics of the ranks stay unknown: {asked}"
    server.answer(HEARD, refusal(403, asked))
    server.answer(JOBS, lambda: listed(ended_well() if said in told else job_with_history()))
    server.answer(f"{JOBS}?watch", events())
    assert main(["watch", NAME, *flags]) == 0
    assert (told.count(said), server.asked.count(HEARD)) == (1, 1)


@pytest.mark.usefixtures("_looking_often")
def test_a_terminal_page_is_redrawn(server: ApiServer, flags: Flags, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", terminal)
    until_heard(server)
    server.answer(HEARD, metrics(17))
    assert main(["watch", NAME, *flags]) == 0
    drawn = terminal.getvalue().split("\x1b[J")
    assert any("step 17" in page and "55.9/74.5Gi" in page for page in drawn)
    assert "Next" in drawn[-1]
    assert "Next" not in drawn[-2], "what stays is the view alone"
