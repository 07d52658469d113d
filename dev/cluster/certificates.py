"""Certificates, and a kubeconfig for each client of the API server; recreated by every `up`."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path

from dev.cluster.layout import API_URL, CERTIFICATES, CLUSTER_DOMAIN, HOST_ADDRESS, KUBECONFIG, KUBERNETES_SERVICE, Node
from dev.cluster.shell import run

# Kubernetes binds the role of cluster DNS to this name, so a certificate with it needs no further binding.
DNS_USER = "system:serviceaccount:kube-system:kube-dns"

_COMPONENTS = {
    "admin": "/O=system:masters/CN=admin",
    "apiserver-kubelet": "/O=system:masters/CN=apiserver-kubelet",
    "kube-controller-manager": "/CN=system:kube-controller-manager",
    "kube-scheduler": "/CN=system:kube-scheduler",
    "kube-proxy": "/CN=system:kube-proxy",
    "dns": f"/CN={DNS_USER}",
}


def _authority(name: str) -> None:
    constraints = ["basicConstraints=critical,CA:TRUE"]
    _certificate(name, f"/CN=devcluster {name}", "keyCertSign,cRLSign", extensions=constraints)


def _certificate(
    name: str, subject: str, usage: str = "digitalSignature", *, authority: str = "", extensions: list[str]
) -> None:
    argv = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "365"]
    argv += ["-keyout", str(CERTIFICATES / f"{name}.key"), "-out", str(CERTIFICATES / f"{name}.crt"), "-subj", subject]
    if authority:
        argv += ["-CA", str(CERTIFICATES / f"{authority}.crt"), "-CAkey", str(CERTIFICATES / f"{authority}.key")]
    for extension in [f"keyUsage=critical,{usage}", *extensions]:
        argv += ["-addext", extension]
    # The machine's openssl.cnf would add conflicting extensions.
    run([*argv, "-config", "/dev/stdin"], stdin="[req]\ndistinguished_name=dn\n[dn]\n")


def _client(name: str, subject: str) -> None:
    _certificate(name, subject, authority="ca", extensions=["extendedKeyUsage=clientAuth"])


def _server(name: str, subject: str, names: str, authority: str = "ca", usage: str = "serverAuth") -> None:
    extensions = [f"extendedKeyUsage={usage}", f"subjectAltName={names}"]
    _certificate(name, subject, authority=authority, extensions=extensions)


def make_certificates(nodes: tuple[Node, ...]) -> None:
    CERTIFICATES.mkdir(parents=True, mode=0o700)
    _authority("ca")
    _authority("etcd-ca")
    # One key pair for etcd, its peer and its only client, the API server: this CA has no other certificates.
    _server("etcd", "/CN=etcd", "IP:127.0.0.1", authority="etcd-ca", usage="serverAuth,clientAuth")
    service = "kubernetes.default.svc"
    names = ["kubernetes", "kubernetes.default", service, f"{service}.{CLUSTER_DOMAIN}"]
    addresses = [HOST_ADDRESS, KUBERNETES_SERVICE]
    sans = ",".join([f"DNS:{name}" for name in names] + [f"IP:{address}" for address in addresses])
    _server("apiserver", "/CN=kube-apiserver", sans)
    for name, subject in _COMPONENTS.items():
        _client(name, subject)
    for node in nodes:
        _client(node.name, f"/O=system:nodes/CN=system:node:{node.name}")
        _server(f"{node.name}-serving", f"/CN={node.name}", f"DNS:{node.name},IP:{node.address}")
    _service_account_keys()
    for name in ("kube-controller-manager", "kube-scheduler"):
        write_kubeconfig(CERTIFICATES / f"{name}.kubeconfig", name)
    write_kubeconfig(KUBECONFIG, "admin")


def _service_account_keys() -> None:
    key, public = CERTIFICATES / "service-accounts.key", CERTIFICATES / "service-accounts.pub"
    run(["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", str(key)])
    run(["openssl", "ec", "-in", str(key), "-pubout", "-out", str(public)])


def write_kubeconfig(path: Path, user: str) -> None:
    """Write a kubeconfig with embedded certificates, which works wherever it is copied. It is JSON, a subset of
    YAML."""

    def embedded(name: str) -> str:
        return b64encode((CERTIFICATES / name).read_bytes()).decode()

    name = "devcluster"
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "contexts": [{"name": name, "context": {"cluster": name, "user": user}}],
        "clusters": [{"name": name, "cluster": {"server": API_URL, "certificate-authority-data": embedded("ca.crt")}}],
        "users": [
            {
                "name": user,
                "user": {
                    "client-certificate-data": embedded(f"{user}.crt"),
                    "client-key-data": embedded(f"{user}.key"),
                },
            }
        ],
    }
    path.touch(mode=0o600)
    path.write_text(json.dumps(content, indent=1))
