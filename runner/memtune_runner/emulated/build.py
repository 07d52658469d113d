"""Builds the emulated GPU's libraries for one torch: our C, stubs for all other functions, and absent libraries."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from memtune.wire import environment
from memtune_runner.emulated import elf
from memtune_runner.emulated.errors import EmulationError, NoCompilerError

LIBRARY = "libmemtune_emulated.so"
SOURCES = Path(__file__).parent / "native"
_GPU_LIBRARY = "libmemtune_gpu.so"
# Releases of CUDA between which a structure changed; each serves those before the next.
CUDA_MAJORS = (12, 13)
# NVIDIA's among torch's undefined symbols: the driver, the runtime and the libraries above them.
_NVIDIA = re.compile(
    r"(__)?cuda[A-Z]\w*|cu[A-Z]\w*|(cublas|cudnn|cusolver|cusparse|cufft|cupti|curand)(Lt)?[A-Z]\w*"
    r"|(nccl|nvrtc|nvml|nvshmem|nvtx|nvJitLink)\w*"
)
_NVIDIA_SONAME = re.compile(r"lib(cu|nv|nccl).*\.so[.\d]*")
# libc10_cuda looks functions of the driver and NVML up by name and asserts that they exist.
_LOOKED_UP = re.compile(rb"\0((?:cu[A-Z]|nvml[A-Z])\w+)(?=\0)")
_CUDA_LIBRARY = "libc10_cuda.so"
_OF_TORCH = ("libtorch*.so", "libc10*.so", "libcaffe2*.so")
# torch opens these by name, whether or not it is linked with them.
_DRIVER = "libcuda.so.1"
_OPENED = (_DRIVER, "libnvidia-ml.so.1")
# These compute into their arguments, or set or end something: they only have to succeed.
_COMPUTES = re.compile(
    r"cublas(Lt)?([SDCZ]|Is|Id|Ic|Iz|Gemm|Dot|Matmul|Set|Destroy)\w*|\w+(Destroy|Set|Free)[A-Z]?\w*|cublasLt\w+Destroy"
    r"|cudnn(Convolution|BatchNormalization|Pooling|Spatial|Backend(Execute|Finalize))\w*"
    r"|ncclGroup(Start|End)|ncclComm(De|)[Rr]egister|ncclCommDeregister|nccl(Send|Recv)|nvrtc(Compile|Destroy|Add)\w*"
    r"|cudaProfiler\w+|cudaKernelSet\w+|cudaLibraryUnload|cuLinkAddData_v2|nvtx\w+|cupti\w+"
)


class Binaries(NamedTuple):
    """The symbols that an installation's shared libraries need from NVIDIA's, and the libraries that are missing."""

    undefined: frozenset[str]
    absent: frozenset[str]


def inspect(torch_directory: Path) -> Binaries:
    """Read what torch's libraries need."""
    undefined, needed, searched = set[str](), set(_OPENED), set[Path]()
    for path in _libraries(torch_directory):
        library = elf.read(path)
        undefined.update(filter(_NVIDIA.fullmatch, library.undefined))
        needed.update(filter(_NVIDIA_SONAME.fullmatch, library.needed))
        searched.update(Path(entry.replace("$ORIGIN", str(path.parent))) for entry in library.search_path)
        if path.name == _CUDA_LIBRARY:
            undefined.update(name.decode("ascii") for name in _LOOKED_UP.findall(path.read_bytes()))
    absent = {soname for soname in needed if not any((directory / soname).exists() for directory in searched)}
    return Binaries(frozenset(undefined), frozenset(absent))


def _libraries(torch_directory: Path) -> list[Path]:
    """Return torch's own shared libraries: in its package, or in the `lib` of the prefix, where conda puts them."""
    prefix = torch_directory.absolute().parent.parent.parent  # lib/python3.11/site-packages/torch
    if (prefix / _CUDA_LIBRARY).exists():
        return sorted(path for name in _OF_TORCH for path in prefix.glob(name))
    return sorted((torch_directory / "lib").glob("*.so"))


def stubs(undefined: Iterable[str], defined: Iterable[str]) -> bytes:
    """Return a library of the remaining functions: each succeeds, and calls whose answer may be read are counted."""
    left = sorted(set(undefined) - set(defined))
    silent = [name for name in left if _COMPUTES.fullmatch(name)]
    counted = [name for name in left if not _COMPUTES.fullmatch(name)]
    return elf.stubs(platform.machine(), LIBRARY, _GPU_LIBRARY, "$ORIGIN", silent, counted)


def build(torch_directory: Path, torch_version: str, cuda: str, cache: Path | None = None) -> Path:
    """Return the directory of the emulated GPU for this torch, building it if necessary."""
    binaries = inspect(torch_directory)
    directory = (cache or cache_directory()) / f"torch-{torch_version}-{_key(binaries, cuda)}"
    if directory.is_dir():
        return directory
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory.parent) as temporary:
            made = Path(temporary, "made")
            made.mkdir()
            _build_into(made, binaries, cuda)
            made.rename(directory)
    except OSError as error:
        if not directory.is_dir():  # another process may have been faster
            raise EmulationError(
                f"the emulated GPU cannot be built in {directory.parent}: {error}; "
                "set XDG_CACHE_HOME to a directory that can be written"
            ) from None
    return directory


def cache_directory() -> Path:
    """Return the directory for built libraries: the run's own, or one by the XDG base directory rules."""
    if told := os.environ.get(environment.EMULATED_CACHE):
        return Path(told)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "memtune" / "emulated"


def _key(binaries: Binaries, cuda: str) -> str:
    """Return a key of what torch needs, what of it is not there, and the sources: a change needs another build."""
    parts = (sorted(binaries.undefined), sorted(binaries.absent), cuda, platform.machine())
    text = hashlib.sha256(repr(parts).encode())
    for path in (*sorted(SOURCES.iterdir()), Path(__file__), Path(elf.__file__)):
        text.update(path.read_bytes())
    return text.hexdigest()[:12]


def _build_into(directory: Path, binaries: Binaries, cuda: str) -> None:
    newest = max(major for major in CUDA_MAJORS if major <= max(int(cuda.partition(".")[0]), CUDA_MAJORS[0]))
    library = directory / _GPU_LIBRARY
    prebuilt = prebuilt_library(newest)
    if prebuilt.exists():
        shutil.copyfile(prebuilt, library)
    else:
        compile_library(newest, library)
    (directory / LIBRARY).write_bytes(stubs(binaries.undefined, elf.defined(library)))
    empty = directory / "empty"
    empty.mkdir()
    for soname in binaries.absent:
        # Opening one of these by name and looking a symbol up returns the emulation's.
        (empty / soname).write_bytes(elf.stubs(platform.machine(), soname, LIBRARY, "$ORIGIN/.."))
    # Triton links its launchers with this name.
    (empty / "libcuda.so").symlink_to(_DRIVER)


def prebuilt_library(cuda_major: int, machine: str = "") -> Path:
    """Return where a package has the compiled C for these releases of CUDA, if it was built with it."""
    return SOURCES / f"cuda{cuda_major}-{machine or platform.machine()}.so"


def compile_library(cuda_major: int, target: Path) -> None:
    """Compile the C for torch's release of CUDA."""
    compiler = shlex.split(os.environ.get("CC") or "cc")
    if shutil.which(compiler[0]) is None:
        raise NoCompilerError(
            "no C compiler is here, and this copy of MemTune was not built with the emulated GPU; "
            "install one (Debian: apt-get install gcc libc6-dev), or set CC"
        )
    options = ("-std=gnu11", "-O2", "-fPIC", "-shared", "-s", "-Wall", "-Wextra", f"-DCUDA_MAJOR={cuda_major}")
    words = [*compiler, *options, *map(str, sorted(SOURCES.glob("*.c"))), "-o", str(target)]
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    if done.returncode:
        raise NoCompilerError(f"the C compiler cannot build the emulated GPU: {done.stderr.strip()[-400:]}")


if __name__ == "__main__":  # for packages, which go where no compiler is; CC compiles for the machine that is named
    for each in CUDA_MAJORS:
        compile_library(each, prebuilt_library(each, *sys.argv[1:]))
