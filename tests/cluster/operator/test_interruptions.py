"""The operator is taken away at the worst moments: nothing is lost, and nothing is done twice."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from operator_process import Jobs, OperatorProcess, runs
from pods import Cluster, eventually, uids_by_pod
from reporter import Act
from reporter_jobs import FIXED, let_go, reporter_job

from memtune.wire.report import Ending

# After this a frozen leader has to have a successor.
FAILOVER_SECONDS = 30


@pytest.mark.slow
def test_an_operator_killed_after_every_write_reaches_the_same_status(
    cluster: Cluster, namespace: str, jobs: Jobs, operators: Callable[..., OperatorProcess]
) -> None:
    operator = operators()
    train = (Act(waits=True, ending=Ending.DEVICE_OOM, peak=1.0), Act(waits=True))
    jobs.apply(reporter_job("killed", probe=Act(waits=True), train=train))
    phases, let = [], set()
    for status in jobs.changes("killed"):
        phases.append(status.get("phase", "Pending"))
        if phases[-1] in ("Succeeded", "Failed"):
            break
        operator.kill()
        operator.start()
        # No run ends before the operator has been killed at its start.
        for run in runs(status):
            if "startedAt" in run and run["name"] not in let:
                let_go(cluster, namespace, f"{run['name']}-0")
                let.add(run["name"])
    expected = ["Pending", "Probing", "Launching", "Running", "Recovering", "Succeeded"]
    assert list(dict.fromkeys(phases)) == expected, phases
    status = jobs.status("killed")
    assert [(probe["number"], probe["verdict"]) for probe in status["probes"]] == [(1, "succeeded")]
    assert [(each["number"], each["verdict"]) for each in status["attempts"]] == [(1, "device-oom"), (2, "succeeded")]
    assert (status["oomRetries"], status["disruptions"]) == (1, 0)
    pods = uids_by_pod(cluster, namespace)
    assert {name: len(uids) for name, uids in pods.items()} == dict.fromkeys(
        ("killed-probe-1-0", "killed-train-1-0", "killed-train-2-0"), 1
    )


@pytest.mark.slow
def test_edits_of_a_suspended_job_without_an_operator_take_effect_on_restart(
    namespace: str, cluster: Cluster, jobs: Jobs, operators: Callable[..., OperatorProcess]
) -> None:
    operator = operators()
    operator.start()
    jobs.apply(reporter_job("asleep", train=(Act(waits=True), Act(waits=True)), tuning=FIXED))
    jobs.wait_for("asleep", "Running")
    jobs.patch("asleep", suspend=True)
    jobs.wait_for("asleep", "Suspended")
    operator.kill()
    operator.start()
    jobs.patch("asleep", suspend=False)
    # No sooner than the operator has seen that the first one is gone.
    jobs.wait_for("asleep", "Running")
    operator.kill()
    jobs.patch("asleep", suspend=True)
    operator.start()
    jobs.wait_for("asleep", "Suspended")
    operator.kill()
    jobs.patch("asleep", suspend=False)
    operator.start()
    attempts = jobs.wait_for("asleep", "Running")["attempts"]
    let_go(cluster, namespace, f"{attempts[-1]['name']}-0")
    status = jobs.wait_for("asleep", "Succeeded", "Failed")
    assert status["phase"] == "Succeeded", status["message"]
    assert [each["number"] for each in status["attempts"]] == [1, 2, 3]
    assert (status["oomRetries"], status["disruptions"]) == (0, 0), "suspending costs no budget"


def test_a_frozen_leader_is_replaced_and_does_no_harm_afterwards(
    cluster: Cluster, namespace: str, jobs: Jobs, operators: Callable[..., OperatorProcess]
) -> None:
    first, second = (operators(LEASE_NAMESPACE=namespace, IDENTITY=name) for name in ("first", "second"))

    def leads(name: str) -> Callable[[], bool]:
        return lambda: cluster.lease_holder(namespace, "memtune-operator") == name

    first.start()
    eventually(leads("first"), "the first operator to lead")
    second.start()
    jobs.apply(reporter_job("frozen", probe=Act(waits=True), train=(Act(waits=True),)))
    jobs.wait_until_started("frozen")
    first.freeze()
    eventually(leads("second"), "the second operator to lead", FAILOVER_SECONDS)
    let_go(cluster, namespace, "frozen-probe-1-0")
    jobs.wait_for("frozen", "Running")
    before = jobs.read("frozen")
    first.thaw()
    assert first.wait(seconds=20) == 1, "who has lost the Lease ends"
    assert jobs.read("frozen") == before
    assert cluster.lease_holder(namespace, "memtune-operator") == "second"
    let_go(cluster, namespace, "frozen-train-1-0")
    jobs.wait_for("frozen", "Succeeded")
    assert {name: len(uids) for name, uids in uids_by_pod(cluster, namespace).items()} == dict.fromkeys(
        ("frozen-probe-1-0", "frozen-train-1-0"), 1
    )
