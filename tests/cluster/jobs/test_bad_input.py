"""Whatever is wrong with an object, a status or a report: somebody says where, and other jobs go on."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from job_with_every_field import WHOLE, put
from kubernetes import client
from operator_process import Jobs, OperatorProcess
from pods import Cluster, eventually
from reporter import Act
from reporter_jobs import FIXED, command, let_go, pod_template, reporter_job
from rule_breaking_specs import BROKEN
from schema_violations import wrong_values

from memtune.api.crd import object_schema
from memtune.wire.report import Ending

MILLION = 1_000_000
# Not the runner at all: whatever takes the place of Python leaves what it likes, and says that it failed.
_PRETENDER = '#!/bin/sh\ncat "/untrusted/$MEMTUNE_JOB" > "$MEMTUNE_TERMINATION_MESSAGE_PATH"; exit 1\n'
_CLAIM = {"version": 1, "ending": "succeeded", "exitCode": 0, "plan": FIXED["plan"]}
REPORTS: dict[str, str] = {
    "a-million-characters": "x" * MILLION,
    "nested": "[" * 5000,
    "no-object": json.dumps([_CLAIM]),
    "a-lie": json.dumps({**_CLAIM, "run": "a-lie-train-1"}),
    "of-another-run": json.dumps({**_CLAIM, "run": "another-train-1"}),
    "of-another-version": json.dumps({**_CLAIM, "version": 2}),
    "of-other-types": json.dumps({**_CLAIM, "exitCode": "0", "memory": 5}),
    "too-large-numbers": '{"version": 1, "ending": "device-oom", "exitCode": 85, "rank": 1' + "0" * 3000 + "}",
    "ugly": json.dumps({**_CLAIM, "run": "ugly-train-1", "ending": "error", "message": "\x1b[2J\ud800\x00"}),
}


def stalled(jobs: Jobs, name: str) -> dict[str, Any]:
    return eventually(lambda: jobs.condition(name, "Stalled"), f"{name} to be stalled", 60)


def renamed(job: dict[str, Any], name: str) -> dict[str, Any]:
    return {**job, "metadata": {"name": name}}


def test_invalid_fields_are_rejected_with_their_paths(jobs: Jobs) -> None:
    whole = renamed(WHOLE, "whole")
    jobs.apply(whole, dry_run="All")
    passed_over = []
    for path, value in wrong_values(object_schema()["properties"]["spec"], "spec"):
        try:
            jobs.apply(put(whole, path, value), dry_run="All")
        except client.ApiException as error:
            if error.status != 422 or path not in str(error.body):
                passed_over.append((path, value, error.body))
        else:
            passed_over.append((path, value, "accepted"))
    assert passed_over == []


@pytest.mark.slow
def test_contradicting_fields_are_rejected_or_stall_only_their_job(
    cluster: Cluster, namespace: str, jobs: Jobs, operator: OperatorProcess
) -> None:
    told = {}
    for number, (_, spec, path) in enumerate(BROKEN):
        name = f"broken-{number}"
        try:
            jobs.apply({**reporter_job(name), "spec": copy.deepcopy(spec)})
            told[name] = path
        except client.ApiException as error:
            if error.status != 422:  # which is the answer of a server that knows the rules itself
                raise
    jobs.apply(reporter_job("good", tuning=FIXED))
    for name, path in told.items():
        condition = stalled(jobs, name)
        assert (condition["status"], condition["reason"]) == ("True", "SpecInvalid")
        assert condition["message"].startswith(f"{path}: ")
    jobs.wait_for("good", "Succeeded")
    assert [found.metadata.name for found in cluster.core.list_namespaced_pod(namespace).items] == ["good-train-1-0"]
    assert "Traceback" not in operator.log()


def with_container(**fields: Any) -> dict[str, Any]:
    """A template whose container has these fields, which are nonsense."""
    template = pod_template(command())
    template["spec"]["containers"][0] |= fields
    return template


TEMPLATES: dict[str, tuple[dict[str, Any], str]] = {
    "no-spec": ({}, "spec.template.spec"),
    "no-containers": ({"spec": {"containers": []}}, "spec.template.spec.containers"),
    "container-is-text": ({"spec": {"containers": ["trainer"]}}, "spec.template.spec.containers[0]"),
    "env-is-text": (with_container(env="A=1"), "spec.template.spec.containers[trainer].env"),
    "words-are-numbers": (with_container(command=[1, 2]), "spec.template.spec.containers[trainer].command"),
    "reserved-variable": (with_container(env=[{"name": "RANK", "value": "1"}]), "RANK"),
    "no-quantity": (with_container(resources={"limits": {"cpu": "much"}}), "quantities"),
    "image-is-a-number": (with_container(image=5), "image"),
    "no-such-policy": (with_container(imagePullPolicy="Perhaps"), "imagePullPolicy"),
    "grace-is-text": (pod_template(command(), terminationGracePeriodSeconds="long"), "terminationGracePeriodSeconds"),
    "no-such-account": (pod_template(command(), serviceAccountName="nobody"), "nobody"),
    "volumes-twice": (
        pod_template(command(), volumes=[{"name": "a", "emptyDir": {}}, {"name": "a", "emptyDir": {}}]),
        "volumes",
    ),
}


@pytest.mark.usefixtures("operator")
def test_an_invalid_template_stalls_the_job_before_any_pod(cluster: Cluster, namespace: str, jobs: Jobs) -> None:
    for name, (template, _) in TEMPLATES.items():
        jobs.apply(reporter_job(name, template=template))
    for name, (_, expected) in TEMPLATES.items():
        condition = stalled(jobs, name)
        assert condition["reason"] in ("TemplateRejected", "TemplateConflict"), name
        assert expected in condition["message"], name
    assert cluster.core.list_namespaced_pod(namespace).items == []


@pytest.mark.slow
def test_a_malformed_report_fails_only_its_own_job(
    cluster: Cluster, namespace: str, jobs: Jobs, operator: OperatorProcess
) -> None:
    files = {**REPORTS, "python": _PRETENDER}
    cluster.core.create_namespaced_config_map(namespace, {"metadata": {"name": "untrusted"}, "data": files})
    volumes = [{"name": "untrusted", "configMap": {"name": "untrusted", "defaultMode": 0o755}}]
    template = pod_template(command(), volumes=volumes)
    template["spec"]["containers"][0]["volumeMounts"] = [{"name": "untrusted", "mountPath": "/untrusted"}]
    for name in REPORTS:
        jobs.apply(reporter_job(name, template=template, tuning=FIXED, runner={"python": "/untrusted/python"}))
    talkative = Act(ending=Ending.ERROR, noise=MILLION)
    jobs.apply(reporter_job("talkative", train=(talkative,), tuning=FIXED))
    for name in (*REPORTS, "talkative"):
        status = jobs.wait_for(name, "Succeeded", "Failed")
        assert (status["phase"], jobs.condition(name, "Failed")["reason"]) == ("Failed", "UserError"), name
        assert [attempt["verdict"] for attempt in status["attempts"]] == ["user-error"] * 2, name
        assert len(json.dumps(status)) < 20_000, name
        assert json.dumps(status).isprintable(), name
    assert "xxx" in jobs.status("talkative")["message"]
    assert "Traceback" not in operator.log()


def test_a_hand_edited_status_is_restored(
    cluster: Cluster, namespace: str, jobs: Jobs, operator: OperatorProcess
) -> None:
    jobs.apply(reporter_job("edited", train=(Act(waits=True),)))
    before = jobs.wait_for("edited", "Running")
    with pytest.raises(client.ApiException, match=r"status\.message"):
        jobs.write_status("edited", {**before, "message": "x" * MILLION})
    lies = {"phase": "Succeeded", "message": "all is well", "oomRetries": 3, "gpuProduct": "a-toaster"}
    jobs.write_status("edited", {**before, **lies})
    eventually(lambda: jobs.status("edited")["phase"] == "Running", "the phase to be put right", 30)
    older = {name: before[name] for name in ("probes", "attempts", "fixed")}
    jobs.write_status("edited", older)
    eventually(lambda: jobs.status("edited").get("phase") == "Running", "an older status to be filled in", 30)
    jobs.write_status("edited", {})
    # Nothing is known of its runs any more: they go, and the job starts anew.
    jobs.wait_for("edited", "Probing")
    jobs.wait_for("edited", "Running")
    let_go(cluster, namespace, f"{jobs.wait_until_started('edited')}-0")
    status = jobs.wait_for("edited", "Succeeded", "Failed")
    assert status["phase"] == "Succeeded", status["message"]
    assert "Traceback" not in operator.log()
