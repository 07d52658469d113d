"""Images: two made here without any registry, those built from images/*.Dockerfile, and loading them into nodes."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tarfile
import tempfile
from pathlib import Path

from devcluster import binaries
from devcluster.layout import CACHE, STATE, Node
from devcluster.node import process_one
from devcluster.packages import debian_sources
from devcluster.runtime import SOCKET
from devcluster.shell import ClusterError, run, run_logged
from devcluster.versions import BASE_IMAGE, BASE_IMAGE_PACKAGES, DEBIAN, PAUSE_IMAGE


def base_archive() -> Path:
    """A Debian with Python, made by mmdebstrap; made once and kept beside the Kubernetes commands."""
    recipe = hashlib.sha256(" ".join((DEBIAN, BASE_IMAGE, *BASE_IMAGE_PACKAGES)).encode()).hexdigest()[:12]
    archive = CACHE / f"base-{recipe}.tar"
    if not archive.is_file():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as work:
            layer, sources = Path(work) / "layer.tar", Path(work) / "debian.sources"
            debian_sources("deb", sources)
            include = f"--include={','.join(BASE_IMAGE_PACKAGES)}"
            log = CACHE / "base.log"
            run_logged(["mmdebstrap", "--variant=minbase", include, DEBIAN, str(layer), str(sources)], log)
            _write_archive(Path(work) / "base.tar", BASE_IMAGE, layer, ["/usr/bin/python3"])
            (Path(work) / "base.tar").rename(archive)
    return archive


def pause_archive() -> Path:
    archive = STATE / "pause.tar"
    if not archive.is_file():
        layer = STATE / "pause-layer.tar"
        with tarfile.open(layer, "w") as tar:
            tar.add(binaries.command("pause"), arcname="pause")
        _write_archive(archive, PAUSE_IMAGE, layer, ["/pause"])
        layer.unlink()
    return archive


def _write_archive(archive: Path, name: str, layer: Path, entrypoint: list[str]) -> None:
    """An image of one layer in the format of `docker save`, which containerd and buildah both read."""
    sha256 = hashlib.sha256()
    with layer.open("rb") as content:
        while block := content.read(1 << 20):
            sha256.update(block)
    environment = ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": entrypoint, "Env": environment},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{sha256.hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    with tarfile.open(archive, "w") as tar:
        for member, content_json in (("config.json", config), ("manifest.json", manifest)):
            data = json.dumps(content_json).encode()
            header = tarfile.TarInfo(member)
            header.size = len(data)
            tar.addfile(header, io.BytesIO(data))
        tar.add(layer, arcname="layer.tar")


def load_archive(archive: Path, nodes: tuple[Node, ...]) -> None:
    for node in nodes:
        # The node's /run is its own; the kernel shows it to the machine through the node's first process.
        socket = f"/proc/{process_one(node)}/root{SOCKET}"
        run(["ctr", "--address", socket, "--namespace", "k8s.io", "images", "import", str(archive)])


def load(image: str, nodes: tuple[Node, ...]) -> None:
    """Load an archive file, or an image out of buildah's storage by its name."""
    if Path(image).is_file():
        load_archive(Path(image), nodes)
        return
    if image == "base":
        load_archive(base_archive(), nodes)
        return
    if shutil.which("buildah") is None:
        raise ClusterError(f"{image} is neither a file nor an image that buildah could know: buildah is not installed")
    with tempfile.TemporaryDirectory(dir=STATE) as work:
        archive = Path(work) / "image.tar"
        run(["buildah", "push", "--quiet", image, f"docker-archive:{archive}:{image}"])
        load_archive(archive, nodes)
