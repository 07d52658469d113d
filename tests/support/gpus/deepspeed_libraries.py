"""DeepSpeed's libraries for an offload to a disk, compiled for the CUDA torch of the emulated GPU.

DeepSpeed compiles 15 files by themselves, each with all headers of torch. Here each of its two libraries is one file,
with the headers of torch that it needs. They stay in the cache of the emulated GPU.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sysconfig
import tempfile
from importlib.util import find_spec
from pathlib import Path

from emulated_gpu_requirements import PYTHON

from memtune_runner.emulated.build import cache_directory

# In the order in which they are put into one file. The second finds in the first what pins memory.
_SOURCES = {
    "pin_memory_op": ("page_alloc", "deepspeed_pin_tensor", "py_ds_pin_memory"),
    "async_io_op": (
        *("deepspeed_py_io_handle", "deepspeed_py_aio", "deepspeed_py_aio_handle", "deepspeed_aio_thread"),
        *("deepspeed_aio_utils", "deepspeed_aio_common", "deepspeed_aio_types", "deepspeed_cpu_op"),
        *("deepspeed_aio_op_desc", "deepspeed_py_copy", "deepspeed_pin_tensor_client", "py_ds_aio"),
    ),
}
# Constants of the same name in several files.
_OF_ONE_FILE = ("c_library_name", "c_block_size", "c_io_queue_depth")
_EXTENSION = "#include <ATen/ATen.h>\n#include <torch/types.h>\n#include <torch/csrc/utils/pybind.h>\n"
# Without instructions of one kind of processor, as DeepSpeed builds for those that it does not know.
_FLAGS = ("-std=c++20", "-O0", "-w", "-fPIC", "-shared", "-fopenmp", "-D__SCALAR__")
_HEADER = Path("usr/include/libaio.h")


class CannotBuildError(Exception):
    """Something is not on this machine."""


def built() -> Path:
    """Return the directory of the libraries."""
    deepspeed = find_spec("deepspeed")
    assert deepspeed is not None
    assert deepspeed.origin is not None
    sources = Path(deepspeed.origin).parent / "ops" / "csrc"
    (torch,) = PYTHON.parents[1].glob("lib/python*/site-packages/torch")
    files = sorted(path for each in ("aio", "pin_memory") for path in (sources / each).rglob("*.[ch]*"))
    key = hashlib.sha256(Path(__file__).read_bytes() + (torch / "version.py").read_bytes())
    for file in files:
        key.update(file.read_bytes())
    directory = cache_directory() / f"deepspeed-{key.hexdigest()[:12]}"
    if directory.is_dir():
        return directory
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent) as temporary:
        made = Path(temporary, "made")
        (made / "torch").mkdir(parents=True)
        (made / "torch" / "extension.h").write_text(f"#pragma once\n{_EXTENSION}")
        for file in files:
            guard = "#pragma once\n" if file.suffix == ".h" else ""
            (made / file.name).write_text(guard + file.read_text())
        system = _libaio(Path(temporary))
        for name in _SOURCES:
            _compile(name, made, torch, system)
        keep(made, directory)
    return directory


def keep(made: Path, directory: Path) -> None:
    """Put what was built where it is looked for, unless another process has meanwhile."""
    try:
        made.rename(directory)
    except OSError:
        if not directory.is_dir():
            raise


def archive_in(system: Path) -> Path:
    """Return the static libaio of this machine below a root, which may have those of others."""
    archive = system / "usr" / "lib" / f"{platform.machine()}-linux-gnu" / "libaio.a"
    if not archive.is_file():
        raise CannotBuildError(f"there is a libaio.h, but no {archive}")
    return archive


def _libaio(directory: Path) -> Path:
    """Return the root below which Debian's libaio lies: that of this machine, or of its package, which is unpacked."""
    if Path("/", _HEADER).is_file():
        return Path("/")
    if not all(map(shutil.which, ("apt-get", "dpkg"))):
        raise CannotBuildError("there is no libaio.h, and no apt-get to get Debian's libaio-dev")
    got = subprocess.run(
        ["apt-get", "download", "libaio-dev"], check=False, capture_output=True, text=True, cwd=directory
    )
    if got.returncode:
        raise CannotBuildError(f"there is no libaio.h, and libaio-dev cannot be downloaded: {got.stderr[-200:]}")
    (package,) = directory.glob("libaio-dev*.deb")
    subprocess.run(["dpkg", "-x", str(package), str(directory)], check=True)
    return directory


def _compile(name: str, directory: Path, torch: Path, system: Path) -> None:
    compiler, python = shutil.which("c++"), Path(sysconfig.get_path("include"))
    if compiler is None or not (python / "Python.h").is_file():
        raise CannotBuildError("there is no C++ compiler, or no Python.h")
    lines = []
    for number, source in enumerate(_SOURCES[name]):
        lines += [f"#undef {each}\n#define {each} {each}_{number}" for each in _OF_ONE_FILE]
        lines.append(f'#include "{source}.cpp"')
    unit = directory / f"{name}.unit.cpp"
    unit.write_text("\n".join(lines) + "\n")
    headers = (
        *(directory, torch / "include", torch / "include" / "torch" / "csrc" / "api" / "include", python),
        *((system / "usr" / "include",) if system != Path("/") else ()),
    )
    done = subprocess.run(
        [
            *(compiler, *_FLAGS, f"-DTORCH_EXTENSION_NAME={name}"),
            *(f"-I{each}" for each in headers),
            *(str(unit), "-o", str(directory / f"{name}.so"), str(archive_in(system)), f"-L{torch / 'lib'}"),
            *("-Wl,--allow-shlib-undefined", "-ltorch_python", "-ltorch", "-ltorch_cpu", "-lc10"),
        ],
        check=False, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
