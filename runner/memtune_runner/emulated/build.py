"""Builds the emulated GPU's libraries for one torch: C sources, stubs for all other symbols, empty libraries."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from memtune.wire import environment
from memtune_runner.emulated.errors import NoCompilerError

LIBRARY = "libmemtune_emulated.so"
SOURCES = Path(__file__).parent / "native"
# NVIDIA's among torch's undefined symbols: the driver, the runtime and the libraries above them.
_NVIDIA = re.compile(
    r"(__)?cuda[A-Z]\w*|cu[A-Z]\w*|(cublas|cudnn|cusolver|cusparse|cufft|cupti|curand)(Lt)?[A-Z]\w*"
    r"|(nccl|nvrtc|nvml|nvshmem|nvtx|nvJitLink)\w*"
)
_NVIDIA_SONAME = re.compile(r"lib(cu|nv|nccl).*\.so[.\d]*")
# libc10_cuda looks functions of the driver and NVML up by name and asserts that they exist.
_LOOKED_UP = re.compile(rb"\0((?:cu[A-Z]|nvml[A-Z])\w+)(?=\0)")
# torch opens these by name, whether or not it is linked with them.
_OPENED = {"libcuda.so.1": (), "libnvidia-ml.so.1": ()}
# These compute into their arguments, or set or end something: they only have to succeed.
_COMPUTES = re.compile(
    r"cublas(Lt)?([SDCZ]|Is|Id|Ic|Iz|Gemm|Dot|Matmul|Set|Destroy)\w*|\w+(Destroy|Set|Free)[A-Z]?\w*|cublasLt\w+Destroy"
    r"|cudnn(RNN|Convolution|BatchNormalization|Pooling|CTCLoss|Spatial|Backend(Execute|Finalize))\w*"
    r"|ncclGroup(Start|End)|ncclComm(De|)[Rr]egister|ncclCommDeregister|nccl(Send|Recv)|nvrtc(Compile|Destroy|Add)\w*"
    r"|cudaProfiler\w+|cudaKernelSet\w+|cuModuleUnload|cudaLibraryUnload|cuLinkAddData_v2|nvtx\w+|cupti\w+"
)


class Binaries(NamedTuple):
    """What an installation's shared libraries need from NVIDIA's."""

    undefined: frozenset[str]
    versions: dict[str, tuple[str, ...]]
    search_path: tuple[Path, ...]


def inspect(torch_directory: Path) -> Binaries:
    """Read the undefined symbols of torch's libraries, the libraries that they need, and where these are searched."""
    libraries = sorted((torch_directory / "lib").glob("*.so"))
    undefined: set[str] = set()
    versions: dict[str, tuple[str, ...]] = dict(_OPENED)
    path: set[Path] = set()
    for library in libraries:
        names = (line.split()[-1].partition("@")[0] for line in _output("nm", "-D", "--undefined-only", library))
        undefined.update(name for name in names if _NVIDIA.fullmatch(name))
        if library.name == "libc10_cuda.so":
            undefined.update(name.decode("ascii") for name in _LOOKED_UP.findall(library.read_bytes()))
        dynamic = _output("readelf", "--dynamic", "--version-info", "--wide", library)
        for soname, nodes in _wanted(dynamic).items():
            versions[soname] = tuple(sorted({*versions.get(soname, ()), *nodes}))
        path.update(_search_path(dynamic, library.parent))
    return Binaries(frozenset(undefined), versions, tuple(sorted(path)))


def _output(*command: object) -> list[str]:
    words = [str(word) for word in command]
    try:
        return subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()
    except FileNotFoundError:
        raise NoCompilerError(
            f"{words[0]} is not installed; install binutils, which a C compiler needs as well"
        ) from None


def _wanted(dynamic: Iterable[str]) -> dict[str, set[str]]:
    """Return the NVIDIA libraries that one library needs, each with the version nodes that it requires."""
    wanted: dict[str, set[str]] = {}
    current = ""
    for line in dynamic:
        if needed := re.search(r"\(NEEDED\).*\[(.+)\]", line):
            if _NVIDIA_SONAME.fullmatch(needed[1]):
                wanted.setdefault(needed[1], set())
        elif file := re.search(r"Version: 1 +File: (\S+)", line):
            current = file[1]
        elif current in wanted and (node := re.search(r"Name: (\S+) +Flags:", line)):
            wanted[current].add(node[1])
    return wanted


def _search_path(dynamic: Iterable[str], origin: Path) -> list[Path]:
    found = (re.search(r"\((?:RPATH|RUNPATH)\).*\[(.+)\]", line) for line in dynamic)
    entries = [entry for match in found if match for entry in match[1].split(":")]
    return [Path(os.path.normpath(entry.replace("$ORIGIN", str(origin)))) for entry in entries]


def stubs(undefined: Iterable[str], defined: Iterable[str]) -> str:
    """Return C stubs for the remaining symbols: each succeeds, and calls whose answer may be read are counted."""
    left = sorted(set(undefined) - set(defined))
    silent = [name for name in left if not _COMPUTES.fullmatch(name)]
    lines = ["#include <stddef.h>", "#include <stdint.h>"]
    lines += [f"int {name}(void) {{ return 0; }}" for name in left if name not in set(silent)]
    lines.append(f"static uint64_t calls[{len(silent) + 1}];")
    lines += [
        f"int {name}(void) {{ return __atomic_add_fetch(calls + {place}, 1, __ATOMIC_RELAXED), 0; }}"
        for place, name in enumerate(silent)
    ]
    names = ", ".join([*(f'"{name}"' for name in silent), "NULL"])
    lines.append(f"static const char *const names[] = {{{names}}};")
    lines.append("const char *emulated_stub(size_t place) { return names[place]; }")
    lines.append("uint64_t emulated_stub_calls(size_t place) { return calls[place]; }")
    return "\n".join(lines) + "\n"


def build(torch_directory: Path, torch_version: str, cuda: str, cache: Path | None = None) -> Path:
    """Return the directory of the emulated GPU for this torch, building it if necessary."""
    directory = (cache or cache_directory()) / f"torch-{torch_version}-{_key(torch_directory, cuda)}"
    if directory.is_dir():
        return directory
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        raise NoCompilerError("no C compiler is here; install one (Debian: apt-get install gcc libc6-dev), or set CC")
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent) as temporary:
        made = Path(temporary, "made")
        made.mkdir()
        _build_into(made, compiler, inspect(torch_directory), cuda.partition(".")[0])
        try:
            made.rename(directory)
        except OSError:
            if not directory.is_dir():  # another process may have been faster
                raise
    return directory


def cache_directory() -> Path:
    """Return the directory for built libraries: the run's own, or one by the XDG base directory rules."""
    if told := os.environ.get(environment.EMULATED_CACHE):
        return Path(told)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "memtune" / "emulated"


def _key(torch_directory: Path, cuda: str) -> str:
    """Return a key of torch, its path and the sources: a change of any needs another build."""
    text = hashlib.sha256(f"{torch_directory} {cuda}".encode())
    for path in (*sorted(SOURCES.iterdir()), Path(__file__)):
        text.update(path.read_bytes())
    for library in sorted((torch_directory / "lib").glob("*.so")):
        text.update(f"{library.name} {library.stat().st_size}".encode())
    return text.hexdigest()[:12]


def _build_into(directory: Path, compiler: str, binaries: Binaries, cuda_major: str) -> None:
    options = ("-std=gnu11", "-O2", "-fPIC", "-shared", "-Wall", "-Wextra")
    library = directory / LIBRARY
    sources = sorted(SOURCES.glob("*.c"))
    define = f"-DCUDA_MAJOR={cuda_major}"
    _compile(compiler, *options, define, *sources, "-o", library)
    ours = {line.split()[-1] for line in _output("nm", "-D", "--defined-only", library)}
    generated = directory / "stubs.c"
    generated.write_text(stubs(binaries.undefined, ours), encoding="ascii")
    _compile(compiler, *options, define, *sources, generated, f"-Wl,-soname,{LIBRARY}", "-o", library)
    empty = directory / "empty"
    empty.mkdir()
    absent = [soname for soname in binaries.versions if not _is_there(soname, binaries.search_path)]
    script = directory / "versions.map"
    for soname in absent:
        nodes = binaries.versions[soname]
        script.write_text("".join(f"{node} {{ }};\n" for node in nodes), encoding="ascii")
        extra = (f"-Wl,--version-script={script}",) if nodes else ()
        # Opening one of these by name and looking a symbol up returns the emulation's.
        linked = ("-Wl,--no-as-needed", f"-L{directory}", f"-l:{LIBRARY}", "-Wl,-rpath,$ORIGIN/..")
        _compile(
            compiler,
            "-shared",
            "-x",
            "c",
            os.devnull,
            *extra,
            f"-Wl,-soname,{soname}",
            "-o",
            empty / soname,
            "-x",
            "none",
            *linked,
        )


def _is_there(soname: str, search_path: Sequence[Path]) -> bool:
    return any((directory / soname).exists() for directory in search_path)


def _compile(*words: object) -> None:
    done = subprocess.run([str(word) for word in words], check=False, capture_output=True, text=True)
    if done.returncode:
        raise NoCompilerError(f"the C compiler cannot build the emulated GPU: {done.stderr.strip()[-400:]}")
