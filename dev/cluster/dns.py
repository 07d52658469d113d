"""Cluster DNS: dnsmasq on the fabric's address, configured by a watch of Services and Endpoints.

Names outside the cluster do not resolve: pods have no route out, and an immediate NXDOMAIN beats a timeout.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from typing import Any

from dev.cluster.api import ApiError, Client, client
from dev.cluster.layout import CLUSTER_DOMAIN, HOST_ADDRESS, HOST_INTERFACE, LOGS, STATE
from dev.cluster.shell import write_new
from dev.cluster.supervisor import Part

_HOSTS = STATE / "dns-hosts"
_KINDS = ("services", "endpoints")


def dns() -> Part:
    return Part("dns", [sys.executable, "-m", "dev.cluster.dns"], LOGS / "dns.log", ready=_HOSTS.exists)


def host_lines(services: list[dict[str, Any]], endpoints: list[dict[str, Any]]) -> list[str]:
    """The hosts file: a Service's address, or those of its pods, and every pod with its own host name."""
    lines = set()
    headless = set()
    for service in services:
        metadata, address = service["metadata"], service["spec"].get("clusterIP", "None")
        if address == "None":
            headless.add((metadata["namespace"], metadata["name"]))
        elif address:
            lines.add(f"{address} {_name(metadata)}")
    for endpoint in endpoints:
        metadata = endpoint["metadata"]
        addresses = [address for subset in endpoint.get("subsets") or [] for address in subset.get("addresses") or []]
        for address in addresses:
            if (metadata["namespace"], metadata["name"]) in headless:
                lines.add(f"{address['ip']} {_name(metadata)}")
            if "hostname" in address:
                lines.add(f"{address['ip']} {address['hostname']}.{_name(metadata)}")
    return sorted(lines)


def _name(metadata: dict[str, Any]) -> str:
    return f"{metadata['name']}.{metadata['namespace']}.svc.{CLUSTER_DOMAIN}"


def _dnsmasq() -> list[str]:
    return [
        "dnsmasq",
        # In the foreground and as the same user: a change of user would reset the parent-death signal.
        "--no-daemon",
        "--conf-file=/dev/null",
        "--pid-file=",
        f"--interface={HOST_INTERFACE}",
        "--except-interface=lo",
        "--bind-interfaces",
        f"--listen-address={HOST_ADDRESS}",
        "--no-resolv",
        "--no-hosts",
        "--local=/#/",
        f"--addn-hosts={_HOSTS}",
    ]


def _write_hosts(api: Client) -> bool:
    services, endpoints = (api.request("GET", f"/api/v1/{kind}")["items"] for kind in _KINDS)
    return write_new(_HOSTS, "".join(f"{line}\n" for line in host_lines(services, endpoints)))


def started(server: list[str]) -> subprocess.Popen[bytes]:
    """Start a server that dies with this process. A SIGHUP does not end it, even before it handles that."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # children inherit it
    return subprocess.Popen(["setpriv", "--pdeathsig", "KILL", "--", *server])


def main() -> int:
    api, changed = client("dns"), threading.Event()
    _write_hosts(api)
    server = started(_dnsmasq())
    for kind in _KINDS:
        api.follow(f"/api/v1/{kind}", changed)
    while server.poll() is None:
        if not changed.wait(timeout=1):
            continue
        changed.clear()
        try:
            if _write_hosts(api):
                server.send_signal(signal.SIGHUP)
        except (OSError, ApiError) as error:
            print(f"reading Services: {error}; again in 1 s", flush=True)
            time.sleep(1)
            changed.set()
    return server.returncode


if __name__ == "__main__":
    sys.exit(main())
