"""What the operator will rely on, tried on the bare cluster: if one of these fails, no later failure means anything."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

import pytest
from kubernetes import client
from pods import GPU, Cluster, container, eventually, pod, unsuitable

FOREVER = "import signal; signal.pause()"


def gpus(count: int) -> dict[str, Any]:
    return {"resources": {"limits": {GPU: str(count)}}}


def terminated(found: Any) -> Any:
    return found.status.container_statuses[0].state.terminated


@pytest.fixture
def eight_gpus(cluster: Cluster) -> None:
    found = cluster.gpus_by_node()
    if set(found.values()) != {8}:
        unsuitable(f"this test needs eight GPUs on every node, and the cluster has {found}")


def test_a_pod_is_scheduled_and_its_log_is_read(cluster: Cluster, namespace: str) -> None:
    ended = cluster.finish(namespace, pod("hello", container("print('hello from', 6 * 7)")))
    assert ended.status.phase == "Succeeded"
    assert cluster.log(namespace, "hello") == "hello from 42\n"


def test_exec_reaches_a_running_container(cluster: Cluster, namespace: str) -> None:
    cluster.create(namespace, pod("running", container(FOREVER)))
    cluster.wait_for_phase(namespace, "running", "Running")
    command = ["python3", "-c", "import os; print(os.readlink('/proc/1/exe'))"]
    code, said = cluster.execute(namespace, "running", command)
    assert code == 0
    assert PurePosixPath(said).name.startswith("python3")


@pytest.mark.usefixtures("eight_gpus")
def test_nine_gpus_stay_pending_on_nodes_of_eight(cluster: Cluster, namespace: str) -> None:
    cluster.create(namespace, pod("greedy", container(FOREVER, **gpus(9))))

    def refusal() -> str:
        conditions = cluster.read(namespace, "greedy").status.conditions or []
        return next((condition.message for condition in conditions if condition.reason == "Unschedulable"), "")

    assert f"Insufficient {GPU}" in eventually(refusal, "the scheduler's refusal")
    assert cluster.read(namespace, "greedy").status.phase == "Pending"


@pytest.mark.alone
@pytest.mark.usefixtures("eight_gpus")
def test_gpus_in_use_are_counted(cluster: Cluster, namespace: str, two_nodes: tuple[str, str]) -> None:
    selector = {"kubernetes.io/hostname": two_nodes[0]}
    cluster.create(namespace, pod("holder", container(FOREVER, **gpus(5)), nodeSelector=selector))
    cluster.wait_for_phase(namespace, "holder", "Running")
    cluster.create(namespace, pod("waiting", container("pass", **gpus(4)), nodeSelector=selector))
    ended = cluster.finish(namespace, pod("fits", container("pass", **gpus(3)), nodeSelector=selector))
    assert ended.status.phase == "Succeeded"
    assert cluster.read(namespace, "waiting").status.phase == "Pending"
    cluster.core.delete_namespaced_pod("holder", namespace)
    cluster.wait_for_phase(namespace, "waiting", "Succeeded")


def test_too_much_memory_is_oom_killed(cluster: Cluster, namespace: str) -> None:
    script = "open('/dev/termination-log', 'w').write('about to take 256 MiB'); x = b'x' * (256 << 20)"
    limits = {"limits": {"memory": "64Mi"}}
    state = terminated(cluster.finish(namespace, pod("hungry", container(script, resources=limits))))
    assert (state.reason, state.exit_code, state.message) == ("OOMKilled", 137, "about to take 256 MiB")


def test_a_failed_container_leaves_its_termination_message(cluster: Cluster, namespace: str) -> None:
    script = "open('/dev/termination-log', 'w').write('no data'); raise SystemExit(3)"
    state = terminated(cluster.finish(namespace, pod("failing", container(script))))
    assert (state.reason, state.exit_code, state.message) == ("Error", 3, "no data")


def test_termination_messages_of_seven_containers_share_12_kib(cluster: Cluster, namespace: str) -> None:
    def talker(name: str) -> dict[str, Any]:
        return container("open('/dev/termination-log', 'w').write('m' * 4000)", name=name)

    inits, apps = [talker("init-0"), talker("init-1")], [talker(f"app-{i}") for i in range(5)]
    body = pod("talkers", *apps, initContainers=inits)
    status = cluster.finish(namespace, body).status
    lengths = [
        len(state.state.terminated.message) for state in status.init_container_statuses + status.container_statuses
    ]
    # Kubelet cuts all of them to the same share of 12 KiB.
    assert lengths == [12 * 1024 // 7] * 7


def test_pods_on_two_nodes_meet_by_name(cluster: Cluster, namespace: str, two_nodes: tuple[str, str]) -> None:
    service = {"clusterIP": "None", "selector": {"run": "train"}, "publishNotReadyAddresses": True}
    cluster.core.create_namespaced_service(namespace, {"metadata": {"name": "train"}, "spec": service})
    server = "import socket; s = socket.create_server(('', 29500)); c, _ = s.accept(); c.sendall(b'rendezvous')"
    caller = f"""\
import socket, time
for _ in range(100):
    try:
        print(socket.create_connection(('rank-0.train.{namespace}.svc.cluster.local', 29500), 5).recv(99).decode())
        break
    except OSError as error:
        print(error, flush=True)
        time.sleep(0.3)
else:
    raise SystemExit('never reached rank-0')
"""
    for rank, (script, node) in enumerate(zip((server, caller), two_nodes, strict=True)):
        place = {"hostname": f"rank-{rank}", "subdomain": "train", "nodeName": node}
        cluster.create(namespace, pod(f"rank-{rank}", container(script), labels={"run": "train"}, **place))
    cluster.wait_for_phase(namespace, "rank-1", "Succeeded")
    assert cluster.log(namespace, "rank-1").endswith("rendezvous\n")


def test_a_service_answers_at_its_cluster_address(cluster: Cluster, namespace: str, two_nodes: tuple[str, str]) -> None:
    spec = {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8000}]}
    cluster.core.create_namespaced_service(namespace, {"metadata": {"name": "web"}, "spec": spec})
    server = "import http.server as h; h.HTTPServer(('', 8000), h.SimpleHTTPRequestHandler).serve_forever()"
    cluster.create(namespace, pod("web", container(server), labels={"app": "web"}, nodeName=two_nodes[0]))
    cluster.wait_for_phase(namespace, "web", "Running")
    caller = """\
import time, urllib.request
for _ in range(50):
    try:
        print(urllib.request.urlopen('http://web', timeout=5).status)
        break
    except OSError:
        time.sleep(0.3)
"""
    for node in two_nodes:
        cluster.finish(namespace, pod(f"caller-{node}", container(caller), nodeName=node))
        assert cluster.log(namespace, f"caller-{node}") == "200\n"


def test_a_service_account_has_only_its_granted_rights(cluster: Cluster, namespace: str) -> None:
    rule = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"]}
    cluster.rbac.create_namespaced_role(namespace, {"metadata": {"name": "reader"}, "rules": [rule]})
    binding = {
        "metadata": {"name": "reader"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"},
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": namespace}],
    }
    cluster.rbac.create_namespaced_role_binding(namespace, binding)
    script = """\
import ssl, urllib.error, urllib.request
account = '/var/run/secrets/kubernetes.io/serviceaccount/'
token, namespace = (open(account + name).read() for name in ('token', 'namespace'))
tls = ssl.create_default_context(cafile=account + 'ca.crt')
for kind in ('configmaps', 'secrets'):
    url = f'https://kubernetes.default.svc/api/v1/namespaces/{namespace}/{kind}'
    request = urllib.request.Request(url, headers={'Authorization': 'Bearer ' + token})
    try:
        print(kind, urllib.request.urlopen(request, context=tls).status)
    except urllib.error.HTTPError as error:
        print(kind, error.code)
"""
    cluster.finish(namespace, pod("asker", container(script)))
    assert cluster.log(namespace, "asker") == "configmaps 200\nsecrets 403\n"


def test_owned_objects_are_collected(cluster: Cluster, namespace: str) -> None:
    owner = cluster.core.create_namespaced_config_map(namespace, {"metadata": {"name": "owner"}})
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner.metadata.uid}
    body = pod("owned", container(FOREVER))
    body["metadata"]["ownerReferences"] = [reference]
    cluster.create(namespace, body)
    cluster.wait_for_phase(namespace, "owned", "Running")
    cluster.core.delete_namespaced_config_map("owner", namespace)
    eventually(lambda: cluster.gone(namespace, "owned"), "the owned pod to be collected")


@pytest.mark.xdist_group("nodes")
def test_a_drained_node_loses_its_pods_and_gets_no_new_ones(
    cluster: Cluster, namespace: str, two_nodes: tuple[str, str]
) -> None:
    drained, other = two_nodes
    cluster.create(namespace, pod("moved", container(FOREVER), nodeSelector={"kubernetes.io/hostname": drained}))
    cluster.wait_for_phase(namespace, "moved", "Running")
    cluster.core.patch_node(drained, {"spec": {"unschedulable": True}})
    try:
        # Without an apiVersion, which is policy/v1beta1 on old servers and policy/v1 on new ones.
        cluster.core.create_namespaced_pod_eviction("moved", namespace, {"metadata": {"name": "moved"}})
        eventually(lambda: cluster.gone(namespace, "moved"), "the evicted pod to go")
        ended = cluster.finish(namespace, pod("next", container("pass")))
        assert ended.spec.node_name == other
    finally:
        cluster.core.patch_node(drained, {"spec": {"unschedulable": None}})


def test_a_quota_refuses_and_a_limit_range_fills_in(cluster: Cluster, namespace: str) -> None:
    hard = {f"requests.{GPU}": "4", "pods": "2"}
    cluster.core.create_namespaced_resource_quota(namespace, {"metadata": {"name": "team"}, "spec": {"hard": hard}})
    limits = [{"type": "Container", "default": {"memory": "128Mi"}, "defaultRequest": {"memory": "32Mi"}}]
    cluster.core.create_namespaced_limit_range(namespace, {"metadata": {"name": "sizes"}, "spec": {"limits": limits}})
    eventually(
        lambda: cluster.core.read_namespaced_resource_quota("team", namespace).status.hard, "the quota to be counted"
    )
    cluster.create(namespace, pod("first", container(FOREVER, **gpus(3))))
    filled = cluster.read(namespace, "first").spec.containers[0].resources
    assert (filled.limits["memory"], filled.requests["memory"]) == ("128Mi", "32Mi")
    with pytest.raises(client.ApiException) as refused:
        cluster.create(namespace, pod("second", container(FOREVER, **gpus(2))))
    assert refused.value.status == 403
    assert "exceeded quota: team" in str(refused.value.body)


def test_a_read_only_pod_without_root_runs(cluster: Cluster, namespace: str) -> None:
    security = {"runAsUser": 65532, "runAsNonRoot": True, "readOnlyRootFilesystem": True}
    script = "import os; print(os.getuid()); open('/tmp/x', 'w')"
    ended = cluster.finish(namespace, pod("strict", container(script, securityContext=security)))
    assert ended.status.phase == "Failed"
    said = cluster.log(namespace, "strict")
    assert "65532" in said.splitlines()
    assert "Read-only file system: '/tmp/x'" in said
