"""Versions, package names and options of the external software of the dev cluster."""

from __future__ import annotations

from typing import NamedTuple

DEBIAN = "bookworm"

KUBERNETES = "1.20.2"
# Any Debian revision will do: point releases change the packaging and remove older revisions.
KUBERNETES_SOURCE = "1.20.5+really1.20.2-"
KUBERNETES_COMMANDS = (
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kube-proxy",
    "kubectl",
)
# Leaves out cloud providers, two fifths of the source.
KUBERNETES_TAGS = "providerless"
# The path of Debian's newer reflect2: with Go 1.19 the vendored 1.0.1 crashes the API server after a while ("unexpected
# fault address" in mapiterinit); 1.0.2 supports Go's newer map layout.
REFLECT2 = "github.com/modern-go/reflect2"
# Even with --container-runtime=remote, kubelet first tries Docker five times, one second apart.
CADVISOR_DOCKER = "github.com/google/cadvisor/container/docker/factory.go"

# Command that shows the package is installed -> Debian package.
RUNTIME_PACKAGES = {
    "etcd": "etcd-server",
    "containerd": "containerd",
    "runc": "runc",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "dnsmasq": "dnsmasq-base",
    "openssl": "openssl",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "mmdebstrap": "mmdebstrap",
    "buildah": "buildah",
}
MONITORING_PACKAGES = {"prometheus": "prometheus"}
# A Node.js that is not Debian's includes npm.
PAGE_PACKAGES = {"node": "nodejs", "npm": "npm"}
BUILD_PACKAGES = {
    "go": "golang-go",
    "rsync": "rsync",
    "jq": "jq",
    "make": "make",
    "dpkg-source": "dpkg-dev",
    f"/usr/share/gocode/src/{REFLECT2}/reflect2.go": "golang-github-modern-go-reflect2-dev",
}


class Suitable(NamedTuple):
    """How to get a program's version, which versions are suitable, and why."""

    question: tuple[str, ...]
    first: tuple[int, int]
    beyond: tuple[int, int]
    why: str


# For programs that may be installed from outside Debian.
SUITABLE = {
    "containerd": Suitable(
        ("--version",), (1, 3), (2, 0), f"Kubernetes {KUBERNETES} speaks with containerd 1.3 to 1.7 (CRI v1alpha2)"
    ),
    "go": Suitable(("version",), (1, 15), (2, 0), f"Kubernetes {KUBERNETES} is built with Go 1.15 or newer"),
}

PAUSE_IMAGE = "localhost/memtune-pause:1"
BASE_IMAGE = "localhost/memtune-base:1"
# Options of mmdebstrap.
BASE_IMAGE_OPTIONS = (
    "--variant=minbase",
    # usr-is-merged replaces usrmerge, which depends on Perl.
    "--include=python3,python3-venv,ca-certificates,usr-is-merged",
    "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr",
    # Documentation and locales: 50 MB.
    *(f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "man", "locale")),
    # The build machine's host name and package sources.
    '--customize-hook=rm "$1"/etc/hostname "$1"/etc/resolv.conf "$1"/etc/apt/sources.list.d/*',
)
