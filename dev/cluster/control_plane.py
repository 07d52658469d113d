"""kube-apiserver, kube-controller-manager and kube-scheduler, run on the machine itself."""

from __future__ import annotations

from dev.cluster.api import ApiError, client
from dev.cluster.binaries import command
from dev.cluster.layout import (
    API_PORT,
    CERTIFICATES,
    CONTROLLER_MANAGER_PORT,
    ETCD_PORT,
    HOST_ADDRESS,
    KUBERNETES_SERVICE,
    LOGS,
    PODS_SUBNET,
    SCHEDULER_PORT,
    SERVICES_SUBNET,
)
from dev.cluster.supervisor import Part


def api_server_ready() -> bool:
    try:
        client().request("GET", "/readyz")
    except (OSError, ApiError):
        return False
    return True


def api_server() -> Part:
    pki = CERTIFICATES
    argv = [
        command("kube-apiserver"),
        f"--bind-address={HOST_ADDRESS}",
        # Pods reach the API server at this address through the `kubernetes` Service: it must not be loopback.
        f"--advertise-address={HOST_ADDRESS}",
        f"--secure-port={API_PORT}",
        "--insecure-port=0",
        f"--service-cluster-ip-range={SERVICES_SUBNET}",
        "--authorization-mode=Node,RBAC",
        "--anonymous-auth=false",
        "--enable-admission-plugins=NodeRestriction",
        f"--etcd-servers=https://127.0.0.1:{ETCD_PORT}",
        f"--etcd-cafile={pki / 'etcd-ca.crt'}",
        f"--etcd-certfile={pki / 'etcd.crt'}",
        f"--etcd-keyfile={pki / 'etcd.key'}",
        f"--client-ca-file={pki / 'ca.crt'}",
        f"--tls-cert-file={pki / 'apiserver.crt'}",
        f"--tls-private-key-file={pki / 'apiserver.key'}",
        f"--kubelet-certificate-authority={pki / 'ca.crt'}",
        f"--kubelet-client-certificate={pki / 'apiserver-kubelet.crt'}",
        f"--kubelet-client-key={pki / 'apiserver-kubelet.key'}",
        # Node names do not resolve here, so `kubectl logs` and `exec` would fail without this.
        "--kubelet-preferred-address-types=InternalIP",
        f"--service-account-issuer=https://{KUBERNETES_SERVICE}",
        f"--service-account-key-file={pki / 'service-accounts.pub'}",
        f"--service-account-signing-key-file={pki / 'service-accounts.key'}",
    ]
    return Part("kube-apiserver", argv, LOGS / "kube-apiserver.log", ready=api_server_ready)


def controller_manager() -> Part:
    kubeconfig = CERTIFICATES / "kube-controller-manager.kubeconfig"
    argv = [
        command("kube-controller-manager"),
        "--bind-address=127.0.0.1",
        "--port=0",
        f"--secure-port={CONTROLLER_MANAGER_PORT}",
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--leader-elect=false",
        "--use-service-account-credentials",
        f"--root-ca-file={CERTIFICATES / 'ca.crt'}",
        f"--service-account-private-key-file={CERTIFICATES / 'service-accounts.key'}",
        f"--cluster-cidr={PODS_SUBNET}",
        "--allocate-node-cidrs=false",
    ]
    return Part("kube-controller-manager", argv, LOGS / "kube-controller-manager.log")


def scheduler() -> Part:
    kubeconfig = CERTIFICATES / "kube-scheduler.kubeconfig"
    argv = [
        command("kube-scheduler"),
        "--bind-address=127.0.0.1",
        "--port=0",
        f"--secure-port={SCHEDULER_PORT}",
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--leader-elect=false",
    ]
    return Part("kube-scheduler", argv, LOGS / "kube-scheduler.log")
