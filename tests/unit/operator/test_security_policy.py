"""What jobs may request of a node: each denial, each permission, and the defaults of each scope."""

from __future__ import annotations

import re
from typing import Any

import pytest

from memtune.api import Job, load_job
from memtune_operator.pods.security_policy import Policy, violation
from memtune_operator.settings import SettingsError, read_settings

OPEN = Policy(host_path=True, host_network=True, privileged=True, service_accounts=None)
STRICT = Policy()


def job(**spec: Any) -> Job:
    return load_job(
        {
            "apiVersion": "memtune.dev/v1alpha1",
            "kind": "MemoryTunedJob",
            "metadata": {"name": "llama", "namespace": "research", "uid": "1"},
            "spec": {
                "model": {"factory": "train:build"},
                "training": {"globalBatchSize": 32, "sequenceLength": 128},
                "template": template(),
                **spec,
            },
        }
    )


def template(container: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    return {"metadata": {}, "spec": {"containers": [{"name": "train", **(container or {})}], **spec}}


ON_HOST = {"path": "/c", "volume": {"hostPath": {"path": "/data"}}}
ASKS_OF_THE_NODE = [
    (template(volumes=[{"name": "data", "hostPath": {"path": "/"}}]), r"volumes\[data\] is a hostPath"),
    (template(hostNetwork=True), "hostNetwork is set"),
    (template(hostPID=True), "hostPID is set"),
    (template(hostIPC=True), "hostIPC is set"),
    (template({"ports": [{"containerPort": 1, "hostPort": 80}]}), r"containers\[train\].ports\[80\].hostPort is set"),
    (template({"securityContext": {"privileged": True}}), "securityContext.privileged is set"),
    (template({"securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}), "capabilities.add is set"),
    (
        template(initContainers=[{"name": "setup", "securityContext": {"privileged": True}}]),
        r"initContainers\[setup\].securityContext.privileged is set",
    ),
    (
        template(securityContext={"windowsOptions": {"hostProcess": True}}),
        r"template.spec.securityContext.windowsOptions.hostProcess is set",
    ),
    (
        template({"securityContext": {"windowsOptions": {"hostProcess": True}}}),
        r"containers\[train\].securityContext.windowsOptions.hostProcess is set",
    ),
    (template({"securityContext": {"procMount": "Unmasked"}}), "procMount is set"),
    (template(securityContext={"seLinuxOptions": {"type": "spc_t"}}), "seLinuxOptions.type is set"),
    (template({"securityContext": {"seLinuxOptions": {"user": "system_u"}}}), "seLinuxOptions.user is set"),
    (template({"securityContext": {"seLinuxOptions": {"role": "sysadm_r"}}}), "seLinuxOptions.role is set"),
    (template(securityContext={"seccompProfile": {"type": "Unconfined"}}), "seccompProfile.type: Unconfined is set"),
    (
        template({"securityContext": {"appArmorProfile": {"type": "Unconfined"}}}),
        "appArmorProfile.type: Unconfined is set",
    ),
    *(
        (
            {**template(), "metadata": {"annotations": {key: "unconfined"}}},
            re.escape(f"annotations[{key}]: unconfined is"),
        )
        for key in (
            "container.apparmor.security.beta.kubernetes.io/train",
            "container.seccomp.security.alpha.kubernetes.io/train",
            "seccomp.security.alpha.kubernetes.io/pod",
        )
    ),
    (template(serviceAccountName="admin"), "serviceAccountName is 'admin'; the operator's policy allows default"),
    (template(serviceAccount="admin"), "serviceAccount is 'admin'"),
]


@pytest.mark.parametrize(("asking", "words"), ASKS_OF_THE_NODE)
def test_access_to_the_node_is_denied_unless_allowed(asking: dict[str, Any], words: str) -> None:
    denied = violation(STRICT, job(), asking)
    assert denied.startswith("spec.template.")
    assert denied.endswith("change it")
    assert re.search(words, denied)
    assert violation(OPEN, job(), asking) == ""


def test_a_missing_service_account_means_the_default_one() -> None:
    policy = Policy(service_accounts=("trainer", "loader"))
    words = "serviceAccountName is not set, which means 'default'; the operator's policy allows trainer, loader"
    assert words in violation(policy, job(), template())
    assert violation(policy, job(), template(serviceAccountName="loader")) == ""


def test_an_ordinary_pod_is_allowed() -> None:
    ordinary = template(
        {"securityContext": {"capabilities": {"drop": ["ALL"]}}, "ports": [{"containerPort": 80}]},
        serviceAccountName="default",
        securityContext={"seLinuxOptions": {"type": "container_t", "level": "s0:c123,c456"}},
        volumes=[{"name": "data", "emptyDir": {}}],
    )
    profile = {"container.apparmor.security.beta.kubernetes.io/train": "runtime/default", "note": "unconfined"}
    assert violation(STRICT, job(), {**ordinary, "metadata": {"annotations": profile}}) == ""


def test_checkpoints_on_the_node_are_a_host_path_too() -> None:
    assert violation(STRICT, job(checkpoint=ON_HOST), template()).startswith("spec.checkpoint.volume is a hostPath")


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (Policy(denied_namespaces=("research",)), "denies jobs in namespace research"),
        (Policy(allowed_namespaces=("sales",)), "allows jobs only in sales, not in research"),
        (Policy(allowed_namespaces=("research",)), ""),
        (Policy(allowed_namespaces=("research",), denied_namespaces=("research",)), "denies jobs"),
    ],
)
def test_namespaces_are_allowed_and_denied(policy: Policy, words: str) -> None:
    refused = violation(policy, job(), template())
    assert (words in refused) if words else refused == ""


IMAGE = {"MEMTUNE_OPERATOR_RUNNER_IMAGE": "runner:1"}


def test_a_cluster_wide_operator_denies_access_to_the_node() -> None:
    assert read_settings(IMAGE).policy == STRICT


def test_an_operator_of_some_namespaces_leaves_the_node_to_their_own_rules() -> None:
    settings = read_settings({**IMAGE, "MEMTUNE_OPERATOR_NAMESPACES": "research, sales"})
    assert (settings.namespaces, settings.policy) == (("research", "sales"), OPEN)


def test_each_part_of_the_policy_can_be_set() -> None:
    policy = read_settings(
        {
            **IMAGE,
            "MEMTUNE_OPERATOR_ALLOW_HOST_PATH": "true",
            "MEMTUNE_OPERATOR_SERVICE_ACCOUNTS": "default,trainer",
            "MEMTUNE_OPERATOR_DENIED_NAMESPACES": "kube-system",
        }
    ).policy
    assert policy == Policy(host_path=True, service_accounts=("default", "trainer"), denied_namespaces=("kube-system",))


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("RUNNER_IMAGE", "", "give the image"),
        ("ALLOW_PRIVILEGED", "yes", "neither true nor false"),
        ("METRICS_PORT", "0", "from 1 to 65535"),
        ("LIVENESS_PORT", "http", "from 1 to 65535"),
        ("GPU_HOUR_PRICES", "NVIDIA-L4=0", "a price is a number above 0"),
    ],
)
def test_a_setting_that_does_not_hold_is_named(name: str, value: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words) as caught:
        read_settings({**IMAGE, f"MEMTUNE_OPERATOR_{name}": value})
    assert f"MEMTUNE_OPERATOR_{name}" in str(caught.value)
