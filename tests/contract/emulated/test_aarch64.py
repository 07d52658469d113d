"""The emulated GPU for aarch64: compiled and with stubs for it, and run by an emulator of that processor."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from memtune_runner.emulated import build

_COMPILER, _PROCESSOR, _LIBRARIES = "aarch64-linux-gnu-gcc", "qemu-aarch64-static", "/usr/aarch64-linux-gnu"
_GPU = "name=NVIDIA H100 80GB HBM3;total=1073741824;outside=104857600;major=9;minor=0;sms=132;threads_per_sm=2048"
# Stubs have no sections, which a linker would need; a loader needs none.
_PROGRAM = r"""
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#define CALL(name) ((int (*)())dlsym(library, name))

int main(int count, char **arguments) {
    void *library = dlopen(arguments[count - 1], RTLD_NOW), *address;
    if (!library) return puts(dlerror());
    size_t free, total;
    int codes = CALL("cudaMalloc")(&address, (size_t)3 << 20) | CALL("cudaMemGetInfo")(&free, &total);
    codes |= CALL("cublasSgemm_v2")() | CALL("cusolverDnCreate")(NULL);
    for (int call = 0; call < 1000; call++) codes |= CALL("cusparseCreate")(NULL);
    printf("%d %zu %zu", codes, free >> 20, total >> 20);
    uint64_t *calls = dlsym(library, "emulated_stub_calls");
    for (const char *name = dlsym(library, "emulated_stub_names"); *name; calls++) {
        printf(" %s=%d", name, (int)*calls);
        while (*name++) {}
    }
}
"""


def test_the_library_and_its_stubs_run_on_aarch64(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not all(map(shutil.which, (_COMPILER, _PROCESSOR))):
        pytest.skip(
            f"{_COMPILER} or {_PROCESSOR} is not installed; on Debian: "
            "apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static"
        )
    monkeypatch.setenv("CC", f"{_COMPILER} -Werror")
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    build.compile_library(13, tmp_path / "libmemtune_gpu.so")
    undefined = ["cublasSgemm_v2", "cusolverDnCreate", "cusparseCreate", "cudaMalloc"]
    (tmp_path / build.LIBRARY).write_bytes(build.stubs(undefined, ["cudaMalloc"]))
    source, program = tmp_path / "program.c", tmp_path / "program"
    source.write_text(_PROGRAM)
    subprocess.run([_COMPILER, source, "-o", program], check=True)
    done = subprocess.run(
        [_PROCESSOR, "-L", _LIBRARIES, "-E", f"MEMTUNE_EMULATED_GPU={_GPU}", program, tmp_path / build.LIBRARY],
        check=False,
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("0 920 1024 cusolverDnCreate=1 cusparseCreate=1000", "")
