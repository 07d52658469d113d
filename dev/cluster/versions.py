"""Every version and every name of a foreign thing, in one place."""

from __future__ import annotations

from typing import NamedTuple

DEBIAN = "bookworm"

KUBERNETES = "1.20.2"
# Any revision of it is built: Debian's point releases change the packaging and take older revisions away.
KUBERNETES_SOURCE = "1.20.5+really1.20.2-"
KUBERNETES_COMMANDS = (
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kube-proxy",
    "kubectl",
)
# The clients of cloud providers are two fifths of the source, and this cluster is in no cloud.
KUBERNETES_TAGS = "providerless"
# Where Debian's newer reflect2 goes: with Go 1.19 the vendored 1.0.1 crashes the API server after a while
# ("unexpected fault address" in mapiterinit); 1.0.2 knows Go's newer map layout.
REFLECT2 = "github.com/modern-go/reflect2"
# Even with --container-runtime=remote kubelet looks for Docker first, five times with a second between.
CADVISOR_DOCKER = "github.com/google/cadvisor/container/docker/factory.go"

# Command that shows the package is there -> Debian package.
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
# npm comes along with a Node.js that is not Debian's.
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
    """How a program is asked for its version, which are suitable, and why no others."""

    question: tuple[str, ...]
    first: tuple[int, int]
    beyond: tuple[int, int]
    why: str


# Of what may be there already, from elsewhere than Debian.
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
    # usr-is-merged stands in for usrmerge, which brings all of Perl along.
    "--include=python3,python3-venv,ca-certificates,usr-is-merged",
    "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr",
    # What only a person at a terminal would read: 50 MB.
    *(f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "man", "locale")),
    # What the machine that makes it is called, and where it finds packages.
    '--customize-hook=rm "$1"/etc/hostname "$1"/etc/resolv.conf "$1"/etc/apt/sources.list.d/*',
)
