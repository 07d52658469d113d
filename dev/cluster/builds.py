"""Builds MemTune's images with buildah from images/*.Dockerfile on the local base image."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from dev.cluster import pip_settings
from dev.cluster.disk import GIB, Need
from dev.cluster.layout import CACHE, CHECKOUT, IMAGE_STORAGE
from dev.cluster.machine import check_disks
from dev.cluster.shell import ClusterError, run, run_logged

# Image -> build arguments; nodes of this cluster have no GPU.
OURS: dict[str, tuple[str, ...]] = {"operator": (), "runner": ("TORCH_BUILD=cpu",)}
# The layers of both stages and pip's temporary files.
_SIZES_BYTES = {"operator": GIB, "runner": 5 * GIB}

_WORK = CACHE / "image-build"


def image_name(image: str) -> str:
    # Not `latest`, which Kubernetes would try to pull.
    return f"localhost/memtune-{image}:dev"


def image_id(name: str) -> str:
    """The image's id in buildah's storage; empty if there is none."""
    return run(["buildah", "images", "--quiet", "--no-trunc", "--filter", f"reference={name}"]).strip()


def needs(images: Iterable[str]) -> list[Need]:
    """The disk space for images that were never built; others rebuild only small layers."""
    missing = [image for image in images if shutil.which("buildah") is None or not image_id(image_name(image))]
    return [Need(IMAGE_STORAGE, _SIZES_BYTES[image], f"the image of {image}") for image in missing]


def build(image: str, base: str) -> str:
    """Build one of OURS and return its name; unchanged layers come from buildah's cache."""
    remove_unfinished(base)
    check_disks(needs([image]))
    _WORK.mkdir(parents=True)
    name = image_name(image)
    argv = ["buildah", "bud", "--isolation=chroot", "--storage-driver=overlay", "--network=host", "--layers"]
    for argument in (f"BASE={base}", *OURS[image]):
        argv += ["--build-arg", argument]
    for volume in _lent_volumes(_WORK):
        argv += ["--volume", volume]
    argv += ["--file", str(CHECKOUT / "images" / f"{image}.Dockerfile"), "--tag", name, str(CHECKOUT)]
    log = CACHE / f"{image}-image.log"
    log.unlink(missing_ok=True)
    try:
        run_logged(argv, log, env={**os.environ, "TMPDIR": str(_WORK)})
    finally:
        # A process killed a moment ago may still write there; the next build checks.
        shutil.rmtree(_WORK, ignore_errors=True)
    return name


def remove_unfinished(base: str) -> None:
    """Remove what a killed build left: its files, and containers of the base image, which nothing else creates.

    While such a container exists, buildah keeps its storage mounted.
    """
    shutil.rmtree(_WORK, ignore_errors=True)
    if not image_id(base):
        return
    layer = _first_layer("image", base)
    for container in run(["buildah", "containers", "--noheading", "--format={{.ContainerID}}"]).split():
        # Another process's container may end at this moment.
        with suppress(ClusterError):
            if _first_layer("container", container) == layer:
                run(["buildah", "rm", container])


def _first_layer(kind: str, name: str) -> str:
    layers = run(["buildah", "inspect", f"--type={kind}", "--format={{.OCIv1.RootFS.DiffIDs}}", name])
    return layers.strip("[]\n").partition(" ")[0]


def _lent_volumes(work: Path) -> list[str]:
    """Bind mounts during the build: the machine's pip settings and the local packages they name."""
    contents = [path.read_text() for path in pip_settings.files(os.environ, Path.home()) if path.is_file()]
    lent = pip_settings.settings(contents, os.environ)
    (work / "pip.conf").write_text(pip_settings.pip_conf(lent))
    own = [f"{path}:{path}:ro" for path in pip_settings.local_paths(lent) if path.exists()]
    return [f"{work / 'pip.conf'}:/etc/pip.conf:ro", *own]
