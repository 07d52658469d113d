"""Container images: makes two without a registry, and loads images into nodes."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from dev.cluster import binaries, builds
from dev.cluster.layout import CACHE, STATE, Node
from dev.cluster.machine import BASE_IMAGE_BYTES, check_disk
from dev.cluster.node import process_one
from dev.cluster.packages import debian_sources
from dev.cluster.runtime import SOCKET
from dev.cluster.shell import ClusterError, read_whole, run, run_logged, say, write_new
from dev.cluster.versions import BASE_IMAGE, BASE_IMAGE_OPTIONS, DEBIAN, PAUSE_IMAGE

_WORK = CACHE / "base-build"


def base_archive() -> Path:
    """The base image, Debian with Python, made once by mmdebstrap and cached with the Kubernetes binaries."""
    recipe = hashlib.sha256(" ".join((DEBIAN, BASE_IMAGE, *BASE_IMAGE_OPTIONS)).encode()).hexdigest()[:12]
    archive = CACHE / f"base-{recipe}.tar"
    if not archive.is_file():
        remove_unfinished()
        check_disk(CACHE, BASE_IMAGE_BYTES, "the base image")
        _WORK.mkdir(parents=True)
        try:
            _make_base().rename(archive)
        finally:
            # A process killed a moment ago may still write there; the next command checks.
            remove_unfinished()
    return archive


def _make_base() -> Path:
    layer, sources, archive = (_WORK / name for name in ("layer.tar", "debian.sources", "base.tar"))
    debian_sources("deb", sources)
    log = CACHE / "base.log"
    say(f"making the base image (once, a minute; log: {log})")
    argv = ["mmdebstrap", *BASE_IMAGE_OPTIONS, DEBIAN, str(layer), str(sources)]
    run_logged(argv, log, env={**os.environ, "TMPDIR": str(_WORK)})
    _write_archive(archive, BASE_IMAGE, layer, ["/usr/bin/python3"])
    return archive


def remove_unfinished() -> None:
    """Remove what a killed build of the base image left."""
    shutil.rmtree(_WORK, ignore_errors=True)


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
    """Write a one-layer image in the format of `docker save`, which containerd and buildah read."""
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
        # buildah rejects a base image whose history and layers differ in number.
        "history": [{"created_by": name}],
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    with tarfile.open(archive, "w") as tar:
        for member, content_json in (("config.json", config), ("manifest.json", manifest)):
            data = json.dumps(content_json).encode()
            header = tarfile.TarInfo(member)
            header.size = len(data)
            tar.addfile(header, io.BytesIO(data))
        tar.add(layer, arcname="layer.tar")


def load(image: str, nodes: tuple[Node, ...]) -> None:
    """Load an archive, one of MemTune's images or one in buildah's storage onto every node that lacks it."""
    if Path(image).is_file():
        load_archive(Path(image), nodes)
    elif image == "base":
        archive = base_archive()
        _load_new(BASE_IMAGE, _archive_id(archive), nodes, lambda _: archive)
    else:
        name = build(image) if image in builds.OURS else image
        number = builds.image_id(name) if shutil.which("buildah") else ""
        if not number:
            raise ClusterError(
                f"{image} is neither a file nor an image that buildah knows nor one of: base, {', '.join(builds.OURS)}"
            )
        _load_new(name, number, nodes, partial(_pushed, name))


def load_archive(archive: Path, nodes: tuple[Node, ...]) -> None:
    """Import it into all nodes in parallel: each unpacks on one core."""
    with ThreadPoolExecutor() as pool:
        for imported in [pool.submit(_import, archive, node) for node in nodes]:
            imported.result()


def _import(archive: Path, node: Node) -> None:
    # The node's private /run is reachable through /proc of its first process.
    socket = f"/proc/{process_one(node)}/root{SOCKET}"
    run(["ctr", "--address", socket, "--namespace", "k8s.io", "images", "import", str(archive)])


def build(image: str) -> str:
    """Build one of MemTune's images on the base image and return its name."""
    archive = base_archive()
    if builds.image_id(BASE_IMAGE) != _archive_id(archive):
        run(["buildah", "pull", "--quiet", f"docker-archive:{archive}"])
    return builds.build(image, BASE_IMAGE)


def _archive_id(archive: Path) -> str:
    """The image id: the hash of its configuration."""
    with tarfile.open(archive) as tar:
        config = tar.extractfile("config.json")
        assert config is not None, "it is a file: _write_archive made it"
        return f"sha256:{hashlib.sha256(config.read()).hexdigest()}"


def _load_new(name: str, number: str, nodes: tuple[Node, ...], archive: Callable[[Path], Path]) -> None:
    """Load an image into the nodes that lack it, by their records; only then is an archive made."""
    lacking = tuple(node for node in nodes if _noted(node).get(name) != number)
    if lacking:
        with tempfile.TemporaryDirectory(dir=STATE) as work:
            load_archive(archive(Path(work)), lacking)
    for node in lacking:
        write_new(_note(node), json.dumps(_noted(node) | {name: number}))


def _note(node: Node) -> Path:
    return node.settings / "images.json"


def _noted(node: Node) -> dict[str, str]:
    noted: dict[str, str] = read_whole(_note(node)) if _note(node).is_file() else {}
    return noted


def _pushed(name: str, work: Path) -> Path:
    """Export a compressed archive, since every node reads it."""
    archive = work / "image.tar"
    run(["buildah", "push", "--quiet", "--compression-format=zstd", name, f"oci-archive:{archive}:{name}"])
    return archive
