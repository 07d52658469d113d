"""etcd from Debian's package, on loopback, with client certificates."""

from __future__ import annotations

from dev.cluster.api import tcp_answers
from dev.cluster.layout import CERTIFICATES, ETCD_PEER_PORT, ETCD_PORT, LOGS, STATE
from dev.cluster.supervisor import Part


def etcd() -> Part:
    client, peer = f"https://127.0.0.1:{ETCD_PORT}", f"https://127.0.0.1:{ETCD_PEER_PORT}"
    ca, cert, key = (CERTIFICATES / name for name in ("etcd-ca.crt", "etcd.crt", "etcd.key"))
    argv = [
        "etcd",
        "--name=devcluster",
        f"--data-dir={STATE / 'etcd'}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=devcluster={peer}",
        "--client-cert-auth",
        f"--trusted-ca-file={ca}",
        f"--cert-file={cert}",
        f"--key-file={key}",
        "--peer-client-cert-auth",
        f"--peer-trusted-ca-file={ca}",
        f"--peer-cert-file={cert}",
        f"--peer-key-file={key}",
        # No fsync: the cluster need not survive a power cut.
        "--unsafe-no-fsync",
        # Log entries kept in memory; the default of 100,000 looks like a leak during a busy hour.
        "--snapshot-count=10000",
    ]
    return Part("etcd", argv, LOGS / "etcd.log", ready=lambda: tcp_answers("127.0.0.1", ETCD_PORT))
