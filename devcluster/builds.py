"""Our own images, built by buildah from images/*.Dockerfile on the base image that is made here."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from devcluster import pip_settings
from devcluster.layout import CACHE, CHECKOUT
from devcluster.shell import run, run_logged

# Image -> what its build is told; nodes of this cluster have no GPU.
OURS: dict[str, tuple[str, ...]] = {"operator": (), "runner": ("TORCH_BUILD=cpu",)}


def image_name(image: str) -> str:
    # Any tag but `latest`, which Kubernetes would try to pull.
    return f"localhost/memtune-{image}:dev"


def image_id(name: str) -> str:
    """The image's number in buildah's storage; empty when there is no such image."""
    return run(["buildah", "images", "--quiet", "--no-trunc", "--filter", f"reference={name}"]).strip()


def build(image: str, base: str) -> str:
    """Build one of OURS and return its name; a layer whose inputs are unchanged comes out of buildah's cache."""
    name = image_name(image)
    with tempfile.TemporaryDirectory() as work:
        argv = ["buildah", "bud", "--isolation=chroot", "--storage-driver=overlay", "--network=host", "--layers"]
        for argument in (f"BASE={base}", *OURS[image]):
            argv += ["--build-arg", argument]
        for volume in _lent_volumes(Path(work)):
            argv += ["--volume", volume]
        argv += ["--file", str(CHECKOUT / "images" / f"{image}.Dockerfile"), "--tag", name, str(CHECKOUT)]
        log = CACHE / f"{image}-image.log"
        log.unlink(missing_ok=True)
        run_logged(argv, log)
    return name


def _lent_volumes(work: Path) -> list[str]:
    """Bind mounts for the time of the build: the machine's pip settings, and the local packages these name."""
    contents = [path.read_text() for path in pip_settings.files(os.environ, Path.home()) if path.is_file()]
    lent = pip_settings.settings(contents, os.environ)
    (work / "pip.conf").write_text(pip_settings.pip_conf(lent))
    own = [f"{path}:{path}:ro" for path in pip_settings.local_paths(lent) if path.exists()]
    return [f"{work / 'pip.conf'}:/etc/pip.conf:ro", *own]
