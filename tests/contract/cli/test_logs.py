"""`memtune logs`: the order of logs, and why there may be none."""

from __future__ import annotations

import io
import json
import sys
from typing import Any

import pytest
from cli_jobs import refusal_message
from fake_api_server import (
    BATCH_JOBS,
    JOB,
    JOB_SETS,
    POD,
    PODS,
    ApiServer,
    answer_with_a_job_set,
    found,
    listed,
    refusal,
)
from job_with_history import NAME, job_with_history

from memtune.wire.report import LOG_MARK, Ending, Report
from memtune_cli.main import main

Flags = tuple[str, str]
Captured = pytest.CaptureFixture[str]


def pod(number: int, index: int = 0, **state: Any) -> dict[str, Any]:
    """Return a pod of an attempt whose ranks share the node."""
    run = f"{NAME}-train-{number}"
    owner = {"kind": "MemoryTunedJob", "name": NAME, "uid": "0b5e", "controller": True}
    labels = {"memtune.dev/job": NAME, "memtune.dev/run": run, "memtune.dev/index": str(index)}
    return {
        "metadata": {"name": f"{run}-{index}", "uid": f"{run}-{index}", "labels": labels, "ownerReferences": [owner]},
        "spec": {"containers": [{"name": "sidecar"}, {"name": "trainer"}]},
        "status": {
            "phase": "Failed" if "terminated" in state else "Pending",
            "containerStatuses": [{"name": "trainer", "state": state}],
        },
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


@pytest.mark.parametrize(("asked", "words"), [("log", []), ("log?follow", ["--follow"])], ids=["whole", "followed"])
def test_the_machine_readable_report_is_not_in_the_log_of_people(
    server: ApiServer, flags: Flags, capsys: Captured, asked: str, words: list[str]
) -> None:
    server.answer(PODS, listed(pod(2, running={})))
    server.answer(f"{PODS}/{NAME}-train-2-0/{asked}", (200, f'[rank 0] done\n{LOG_MARK}{{"version":1}}\n'))
    assert main(["logs", NAME, *flags, *words]) == 0
    assert capsys.readouterr().out == "[rank 0] done\n"


def test_the_failing_one_of_two_nodes_comes_first(server: ApiServer, flags: Flags, capsys: Captured) -> None:
    job = job_with_history()
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


def test_pods_of_a_job_set_are_found_through_their_owner_references(
    server: ApiServer, flags: Flags, capsys: Captured
) -> None:
    answer_with_a_job_set(server, JOB)
    server.answer(f"{PODS}/{POD}/log", (200, "[rank 0] step 1\n"))
    assert main(["logs", NAME, *flags]) == 0
    assert capsys.readouterr().out == "[rank 0] step 1\n"
    server.answer(JOB_SETS, refusal(403, 'User "eve" cannot list resource "jobsets"'))
    assert 'cannot list resource "jobsets"' in refusal_message(capsys, "logs", NAME, *flags)


def test_plain_pods_need_no_right_to_see_jobs(server: ApiServer, flags: Flags) -> None:
    server.answer(PODS, listed(pod(2, running={})))
    server.answer(f"{PODS}/{NAME}-train-2-0/log", (200, "loss\n"))
    assert main(["logs", NAME, *flags]) == 0
    assert not [asked for asked in server.asked if asked.startswith((JOB_SETS, BATCH_JOBS))]


def test_a_run_that_goes_on_is_followed(
    server: ApiServer, flags: Flags, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memtune_cli.commands.logs._LOOK_AGAIN_SECONDS", 0.0)
    server.answer(PODS, listed(pod(1, **died(85, rank=5)), pod(2, running={})))
    waiting = refusal(400, "bad request")
    server.answer(f"{PODS}/{NAME}-train-2-0", found(pod(2, waiting={})), found(pod(2, running={})))
    long_line = "x" * 300_000
    server.answer(f"{PODS}/{NAME}-train-2-0/log?follow", waiting, waiting, (200, f"[rank 0] step 1\n{long_line}"))
    assert main(["logs", NAME, *flags, "--follow"]) == 0
    assert capsys.readouterr().out == f"[rank 0] step 1\n{long_line}\n"


EVICTED = {**pod(2, running={}), "status": {"phase": "Failed", "reason": "Evicted"}}
OF_OTHER_CONTAINERS = {**EVICTED, "spec": {"containers": [{"name": "another"}]}, "status": {"phase": "Pending"}}


@pytest.mark.parametrize(
    "about", [pod(2, running={}), EVICTED, OF_OTHER_CONTAINERS], ids=["running", "evicted", "other"]
)
def test_a_log_that_a_container_will_never_have_ends_the_command(
    server: ApiServer, flags: Flags, capsys: Captured, monkeypatch: pytest.MonkeyPatch, about: dict[str, Any]
) -> None:
    monkeypatch.setattr("memtune_cli.commands.logs._LOOK_AGAIN_SECONDS", 0.0)
    server.answer(PODS, listed(pod(2, running={})))
    server.answer(f"{PODS}/{NAME}-train-2-0", found(about))
    server.answer(f"{PODS}/{NAME}-train-2-0/log?follow", refusal(400, "its log is gone"))
    assert "its log is gone" in refusal_message(capsys, "logs", NAME, *flags, "--follow")


def test_characters_that_the_output_cannot_encode_are_replaced(
    server: ApiServer, flags: Flags, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, "ascii"))
    server.answer(PODS, listed(pod(2, running={})))
    server.answer(f"{PODS}/{NAME}-train-2-0/log", (200, "loss \u2193\n"))
    assert main(["logs", NAME, *flags]) == 0
    assert written.getvalue() == b"loss ?\n"


def test_logs_that_cannot_be_shown_are_explained(server: ApiServer, flags: Flags, capsys: Captured) -> None:
    server.answer(PODS, listed(pod(2, waiting={})))
    assert "has no run train-9; its runs are: probe-1, " in refusal_message(
        capsys, "logs", NAME, *flags, "--run", "train-9"
    )
    assert "the pods of llama-7b-train-1 are gone" in refusal_message(capsys, "logs", NAME, *flags, "--run", "train-1")
    assert "has ranks 0 to 7, not 8" in refusal_message(capsys, "logs", NAME, *flags, "--rank", "8")
    server.answer(f"{PODS}/{NAME}-train-2-0/log", refusal(400, 'container "trainer" is waiting to start'))
    assert "is waiting to start" in refusal_message(capsys, "logs", NAME, *flags)
    server.answer(JOB, found(job_with_history(probes=None, attempts=None)))
    assert "has started no run yet" in refusal_message(capsys, "logs", NAME, *flags)
