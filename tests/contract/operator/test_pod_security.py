"""Pod Security `restricted`: every pod of MemTune satisfies it, or the job is rejected with the field's name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
from chart_values import VALUE_SETS
from helm_chart import objects, only
from hypothesis import given, settings
from hypothesis import strategies as st
from kubernetes_models import validate
from pod_security import violations
from runs_with_every_feature import CASES, PROBE, RUNNER_IMAGE, group_job, job, rich_template

from memtune.api import Job, load_job
from memtune.wire.run import Run, TraceRun
from memtune_operator.pods import preflight
from memtune_operator.pods.run_objects import run_objects
from memtune_operator.pods.security_policy import Policy
from memtune_operator.settings import read_settings

RESTRICTED = Policy(service_accounts=None, is_restricted=True)


def problem_of(one: Job, policy: Policy = RESTRICTED) -> str:
    blocker = preflight.check(one, policy, RUNNER_IMAGE).blocker
    return blocker.message if blocker else ""


def pods_of(one: Job, run: Run | TraceRun, is_restricted: bool = True) -> Iterator[dict[str, Any]]:
    """Yield metadata and spec of every pod of a run, including those of a JobSet."""
    for manifest in run_objects(one, run, RUNNER_IMAGE, is_restricted):
        if manifest["kind"] == "Pod":
            yield manifest
        if manifest["kind"] == "JobSet":
            yield from (each["template"]["spec"]["template"] for each in manifest["spec"]["replicatedJobs"])


def found_in(one: Job, run: Run | TraceRun, is_restricted: bool = True) -> list[str]:
    pods = list(pods_of(one, run, is_restricted))
    assert pods
    return [each for pod in pods for each in violations(pod["spec"], pod["metadata"]["annotations"])]


@pytest.mark.parametrize("case", CASES)
def test_every_pod_of_a_run_is_restricted_or_its_job_is_refused(case: str) -> None:
    one, run = CASES[case]
    # The rich template asks for a root user.
    assert bool(problem_of(one)) == (
        one.spec.template is not None and "serviceAccountName" in one.spec.template["spec"]
    )
    if not problem_of(one):
        assert found_in(one, run) == []
        assert found_in(one, run, is_restricted=False)


def test_a_trace_pod_is_restricted() -> None:
    one = group_job()
    assert found_in(one, TraceRun(1)) == []
    assert found_in(one, TraceRun(1), is_restricted=False)


@pytest.mark.parametrize("values", VALUE_SETS.values(), ids=list(VALUE_SETS))
def test_the_job_of_helm_test_makes_restricted_pods(values: dict[str, Any]) -> None:
    (container,) = only(objects(values), "Pod")["spec"]["containers"]
    told = next(each["value"] for each in container["env"] if each["name"] == "TEST_JOB")
    manifest = json.loads(told)
    one = load_job({**manifest, "metadata": {"name": "test", "namespace": "a", "uid": "1"}})
    assert problem_of(one) == ""
    assert found_in(one, PROBE) == []


def test_a_run_that_was_not_asked_to_be_restricted_keeps_the_security_context_of_its_template() -> None:
    template = rich_template()
    (pod, *_) = pods_of(job(template=template), PROBE, is_restricted=False)
    assert pod["spec"]["securityContext"] == template["spec"]["securityContext"]
    assert all("securityContext" not in each for each in pod["spec"]["containers"])


def with_context(pod: dict[str, Any] | None = None, container: dict[str, Any] | None = None, **spec: Any) -> Job:
    trainer = {"name": "train", "image": "mine:1", "command": ["python", "t.py"], **(container or {})}
    return job(template={"spec": {"containers": [trainer], **(pod or {})}}, **spec)


def test_settings_of_the_template_are_kept() -> None:
    profile = {"type": "Localhost", "localhostProfile": "gpu.json"}
    own = {
        "runAsUser": 1000,
        "runAsNonRoot": True,
        "readOnlyRootFilesystem": True,
        "seccompProfile": profile,
        "capabilities": {"drop": ["ALL", "NET_RAW"]},
    }
    one = with_context({"securityContext": {"fsGroup": 100, "seccompProfile": profile}}, {"securityContext": own})
    (pod,) = pods_of(one, PROBE)
    assert pod["spec"]["securityContext"] == {"runAsNonRoot": True, "fsGroup": 100, "seccompProfile": profile}
    assert pod["spec"]["containers"][0]["securityContext"] == {"allowPrivilegeEscalation": False, **own}
    validate(pod, "V1Pod", "Pod")


def container(**context: Any) -> Job:
    return with_context(container={"securityContext": context})


def pod_context(**context: Any) -> Job:
    return with_context({"securityContext": context})


CONTRADICTIONS = {
    "spec.template.spec.securityContext.runAsUser: 0 (give": pod_context(runAsUser=0),
    "spec.template.spec.securityContext.runAsNonRoot: false (take": pod_context(runAsNonRoot=False),
    "securityContext.sysctls[kernel.msgmax] (take": pod_context(sysctls=[{"name": "kernel.msgmax", "value": "1"}]),
    "containers[train].securityContext.runAsUser: 0 (give": container(runAsUser=0),
    "containers[train].securityContext.runAsNonRoot: false (take": container(runAsNonRoot=False),
    "containers[train].securityContext.allowPrivilegeEscalation: true (take": container(allowPrivilegeEscalation=True),
    "containers[train].securityContext.capabilities.drop without ALL (add ALL)": container(
        capabilities={"drop": ["NET_RAW"]}
    ),
    "containers[train].securityContext.privileged is set": container(privileged=True),
    "containers[train].securityContext.capabilities.add is set": container(capabilities={"add": ["SYS_PTRACE"]}),
    "containers[train].readinessProbe.httpGet.host (take": with_context(
        container={"readinessProbe": {"httpGet": {"host": "example.org", "port": 80}}}
    ),
    "containers[train].lifecycle.preStop.tcpSocket.host (take": with_context(
        container={"lifecycle": {"preStop": {"tcpSocket": {"host": "example.org", "port": 80}}}}
    ),
    "initContainers[fetch].securityContext.runAsUser: 0 (give": with_context(
        {"initContainers": [{"name": "fetch", "image": "fetch:1", "securityContext": {"runAsUser": 0}}]}
    ),
    "volumes[data].hostPath (mount": with_context({"volumes": [{"name": "data", "hostPath": {"path": "/data"}}]}),
    "volumes[data].nfs (mount": with_context({"volumes": [{"name": "data", "nfs": {"server": "a", "path": "/"}}]}),
    "spec.checkpoint.volume.hostPath (mount": with_context(checkpoint={"volume": {"hostPath": {"path": "/data"}}}),
    "spec.checkpoint.volume.nfs (mount": with_context(checkpoint={"volume": {"nfs": {"server": "a", "path": "/"}}}),
}


@pytest.mark.parametrize("words", CONTRADICTIONS)
def test_a_field_that_contradicts_the_standard_is_refused_by_its_name(words: str) -> None:
    one = CONTRADICTIONS[words]
    assert words in problem_of(one)
    assert found_in(one, PROBE)


def test_all_contradictions_are_named_at_once() -> None:
    problem = problem_of(with_context({"securityContext": {"runAsUser": 0}}, {"securityContext": {"runAsUser": 0}}))
    assert problem.startswith("the operator's policy is Pod Security restricted, which forbids spec.template.spec.sec")
    assert problem.count("runAsUser: 0 (give the number of a user that is not root)") == 2


def test_violations_of_baseline_and_restricted_are_named_together() -> None:
    pod = {"hostNetwork": True, "volumes": [{"name": "data", "hostPath": {"path": "/data"}}]}
    context = {"privileged": True, "runAsUser": 0}
    assert problem_of(with_context(pod, {"securityContext": context})) == (
        "spec.template.spec.hostNetwork is set, which the operator's policy denies; "
        "spec.template.spec.containers[train].securityContext.privileged is set, which the operator's policy denies; "
        "ask whoever installed the operator, or change it; "
        "the operator's policy is Pod Security restricted, which forbids "
        "spec.template.spec.volumes[data].hostPath (mount it through a persistentVolumeClaim), "
        "spec.template.spec.containers[train].securityContext.runAsUser: 0 (give the number of a user that is not root)"
    )


def test_without_the_setting_nothing_of_it_is_refused() -> None:
    policy = Policy(host_path=True, host_network=True, privileged=True, service_accounts=None)
    assert [problem for one in CONTRADICTIONS.values() if (problem := problem_of(one, policy))] == []


CONTEXTS = st.fixed_dictionaries(
    {},
    optional={
        "runAsUser": st.sampled_from([0, 1000, None]),
        "runAsNonRoot": st.sampled_from([True, False, None]),
        "seccompProfile": st.sampled_from([{"type": "RuntimeDefault"}, {"type": "Unconfined"}, None]),
        "seLinuxOptions": st.sampled_from([{"type": "container_t"}, {"type": "spc_t"}, {"user": "system_u"}]),
        "appArmorProfile": st.sampled_from([{"type": "RuntimeDefault"}, {"type": "Unconfined"}]),
    },
)
CONTAINER_CONTEXTS = st.builds(
    lambda common, own: {**common, **own},
    CONTEXTS,
    st.fixed_dictionaries(
        {},
        optional={
            "privileged": st.booleans(),
            "allowPrivilegeEscalation": st.sampled_from([True, False, None]),
            "capabilities": st.sampled_from([{}, None, {"drop": ["ALL"]}, {"drop": ["KILL"]}, {"add": ["CHOWN"]}]),
            "procMount": st.sampled_from(["Default", "Unmasked"]),
        },
    ),
)
PODS = st.fixed_dictionaries(
    {},
    optional={
        "hostNetwork": st.booleans(),
        "securityContext": CONTEXTS,
        "volumes": st.sampled_from([[{"name": "a", kind: {}}] for kind in ("emptyDir", "nfs", "hostPath", "csi")]),
    },
)


@settings(deadline=None, max_examples=300)
@given(PODS, CONTAINER_CONTEXTS, CONTAINER_CONTEXTS)
def test_a_job_is_refused_exactly_where_its_pods_would_violate_the_standard(
    pod: dict[str, Any], trainer: dict[str, Any], setup: dict[str, Any]
) -> None:
    init = [{"name": "setup", "image": "setup:1", "securityContext": setup}]
    one = with_context(deepcopy({**pod, "initContainers": init}), {"securityContext": trainer})
    assert bool(problem_of(one)) == bool(found_in(one, PROBE)), (problem_of(one), found_in(one, PROBE))


IMAGE = {"MEMTUNE_OPERATOR_RUNNER_IMAGE": "runner:1"}


def test_the_chart_asks_for_it_by_one_setting() -> None:
    values = VALUE_SETS["namespaces"]
    (operator,) = only(objects(values), "Deployment")["spec"]["template"]["spec"]["containers"]
    told = {each["name"]: each.get("value", "") for each in operator["env"]}
    policy = read_settings(told).policy
    assert policy.is_restricted
    assert (policy.host_path, policy.host_network, policy.privileged) == (False, False, False)
    assert not read_settings(IMAGE).policy.is_restricted


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"POD_SECURITY": "baseline"}, "MEMTUNE_OPERATOR_POD_SECURITY='baseline': it is not restricted"),
        (
            {"POD_SECURITY": "restricted", "ALLOW_PRIVILEGED": "true"},
            "MEMTUNE_OPERATOR_ALLOW_PRIVILEGED='true': MEMTUNE_OPERATOR_POD_SECURITY=restricted forbids it",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(variables: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        read_settings({**IMAGE, **{f"MEMTUNE_OPERATOR_{name}": value for name, value in variables.items()}})
