"""A job with each choice of `tuning.sampler`, under an operator that is killed whenever a probe has begun.

The next one starts once all pods have ended, so that it finds reports that nobody has read.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, get_args

import pytest
from operator_process import Jobs, OperatorProcess
from pods import Cluster, eventually, uids_by_pod
from reporter_jobs import reporter_job

from memtune.api import load_job
from memtune.api.status import Status
from memtune.api.tuning import Sampler
from memtune.controller.job_knowledge import knowledge_of
from memtune.controller.trials import search_state
from memtune_operator.search.optuna_search import PRIOR_PROBES, propose

SAMPLERS = get_args(Sampler)
# One more than MemTune chooses for Optuna's samplers: the last one is their own.
PROBES = PRIOR_PROBES + 1
SPACE = {"precision": ["fp32"], "checkpointing": ["none", "selective", "full"], "backends": ["ddp"]}
ENDED = ("Succeeded", "Failed")
# Each restart of the operator takes a second or two, many more on a machine that is busy.
SECONDS = 600


def begun(statuses: dict[str, dict[str, Any]]) -> dict[str, int]:
    """How many runs of each job have begun."""
    runs = {name: [*each.get("probes", ()), *each.get("attempts", ())] for name, each in statuses.items()}
    return {name: len([run for run in each if "startedAt" in run]) for name, each in runs.items()}


def unread(cluster: Cluster, namespace: str, statuses: dict[str, dict[str, Any]]) -> set[str]:
    """The job of each probe that has ended without its status saying so."""
    pods = cluster.core.list_namespaced_pod(namespace).items
    ended = {pod.metadata.labels["memtune.dev/run"] for pod in pods if pod.status.phase in ENDED}
    probes = ((name, probe) for name, status in statuses.items() for probe in status.get("probes", ()))
    return {name for name, probe in probes if "endedAt" not in probe and probe["name"] in ended}


def have_ended(cluster: Cluster, namespace: str) -> bool:
    return all(pod.status.phase in ENDED for pod in cluster.core.list_namespaced_pod(namespace).items)


@pytest.mark.xdist_group("gpu-products")
@pytest.mark.slow
def test_each_sampler_survives_an_operator_killed_at_every_probe(
    cluster: Cluster, namespace: str, jobs: Jobs, operators: Callable[..., OperatorProcess]
) -> None:
    operator = operators()
    operator.start()
    for sampler in SAMPLERS:
        # All reporters take the same memory: smaller plans are tried until three of them were no smaller.
        tuning = {"space": SPACE, "maxProbes": PROBES, "sampler": sampler, "objectives": ["memory"]}
        jobs.apply(reporter_job(sampler.lower(), tuning=tuning))
    seen, kills, left, until = dict[str, int](), 0, set[str](), time.monotonic() + SECONDS
    while time.monotonic() < until:
        statuses = jobs.statuses()
        if all(each.get("phase") in ("Succeeded", "Failed", "Stalled") for each in statuses.values()):
            break
        if (now := begun(statuses)) != seen:
            operator.kill()
            eventually(lambda: have_ended(cluster, namespace), "the pods end without an operator")
            left |= unread(cluster, namespace, jobs.statuses())
            operator.start()
            seen, kills = now, kills + 1
        time.sleep(0.5)
    assert kills > PROBES
    assert left == {sampler.lower() for sampler in SAMPLERS}, "of each job a report was left unread"
    for sampler in SAMPLERS:
        status = jobs.status(sampler.lower())
        assert status["phase"] == "Succeeded", (sampler, status.get("message"))
        assert [each["verdict"] for each in status["attempts"]] == ["succeeded"]
        plans = [probe["plan"] for probe in status["probes"]]
        assert len(plans) == len(set(plans)) == PROBES, "each probe has a plan of its own"
        assert plans == proposed(jobs.read(sampler.lower())), "a restart changes no proposal"
    pods = uids_by_pod(cluster, namespace)
    assert len(pods) == len(SAMPLERS) * (PROBES + 1)
    assert all(len(uids) == 1 for uids in pods.values()), "no run was started twice"


def proposed(manifest: dict[str, Any]) -> list[str]:
    """What the sampler proposes after each of a job's probes, by the status alone."""
    job, whole = load_job(manifest), Status.model_validate(manifest["status"])
    found = []
    for number in range(len(whole.probes)):
        status = whole.model_copy(update={"probes": whole.probes[:number], "attempts": []})
        found.append(str(propose(search_state(job, status, knowledge_of(job, status, None)))))
    return found
