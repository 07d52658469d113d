"""The emulated GPU's libraries, built without torch and called as torch would: accounting, copies, driver, messages."""

from __future__ import annotations

import _ctypes
import ctypes
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from memtune.units import GIB, MIB
from memtune_runner.emulated import build, elf
from memtune_runner.emulated.errors import EmulationError, NoCompilerError
from memtune_runner.emulated.process import collectives, stub_calls

_GPU = "name=NVIDIA H100 80GB HBM3;total=1073741824;outside=104857600;major=9;minor=0;sms=132;threads_per_sm=2048"
_OUT_OF_MEMORY = 2
_NO_GPU = 100
_NO_DEVICE = 101

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library with its stubs; each test loads it anew."""
    directory = tmp_path_factory.mktemp("built")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("CC", "cc -Werror")
        build.compile_library(13, directory / "libmemtune_gpu.so")
    stubs = directory / build.LIBRARY
    undefined = ["cublasSgemm_v2", "cusolverDnCreate", "cusparseCreate", "cudaMalloc"]
    stubs.write_bytes(build.stubs(undefined, ["cudaMalloc"]))
    return stubs


@pytest.fixture
def library(built: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("MEMTUNE_EMULATED_GPU", _GPU)
    library = ctypes.CDLL(str(built))
    yield library
    _ctypes.dlclose(library._handle)  # or the next test would get this one's books


def _allocate(library: Any, size: int) -> tuple[int, int]:
    address = ctypes.c_void_p()
    code = library.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(size))
    return code, address.value or 0


def _free_bytes(library: Any) -> int:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    library.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total))
    assert total.value == GIB
    return free.value


def _used_peak(library: Any, gpu: int) -> int:
    library.emulated_used_peak.restype = ctypes.c_uint64
    return int(library.emulated_used_peak(gpu))


def test_memory_is_rounded_to_pages_and_includes_the_context(library: Any) -> None:
    assert _free_bytes(library) == GIB - 100 * MIB
    code, address = _allocate(library, 3 * MIB)
    assert code == 0
    assert _free_bytes(library) == GIB - 104 * MIB
    assert library.cudaFree(ctypes.c_void_p(address)) == 0
    assert _free_bytes(library) == GIB - 100 * MIB
    assert _used_peak(library, 0) == 4 * MIB


def test_torchs_libraries_are_found_where_conda_puts_them(tmp_path: Path) -> None:
    torch_directory = tmp_path / "lib" / "python3.11" / "site-packages" / "torch"
    (torch_directory / "lib").mkdir(parents=True)
    source = tmp_path / "source.c"
    source.write_text("int cudaMalloc(void);\nint start(void) { return cudaMalloc(); }\n")
    subprocess.run(["cc", "-shared", "-fPIC", source, "-o", tmp_path / "lib" / "libc10_cuda.so"], check=True)
    (tmp_path / "lib" / "libother.so").write_text("not one of torch's")
    (torch_directory / "lib" / "libtorch_global_deps.so").symlink_to(tmp_path / "lib" / "libc10_cuda.so")
    assert build.inspect(torch_directory).undefined == {"cudaMalloc"}


def test_a_torch_in_a_short_path_is_read_as_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "glob", lambda directory, name: [directory / name])
    assert build._libraries(Path("/torch")) == [Path("/torch/lib/*.so")]


@pytest.fixture
def node(built: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The library of a node with 4 GPUs."""
    monkeypatch.setenv("MEMTUNE_EMULATED_GPU", f"{_GPU};gpus=4")
    library = ctypes.CDLL(str(built))
    yield library
    _ctypes.dlclose(library._handle)


@pytest.mark.parametrize(
    ("visible", "numbers"),
    [
        ("2", [2]),
        ("3,1", [3, 1]),
        (" 1, 0", [1, 0]),
        ("1,4,2", [1]),  # up to the first that is not there
        ("1,-1,2", [1]),
        ("1,,2", [1]),
        ("", []),
        ("-1", []),
        ("none", []),
        ("1,2,1", []),
        ("GPU-6d656d74-756e-652d-656d-756c61746566,GPU-6d656d74-756e-652d-656d-756c61746564", [2, 0]),
        ("GPU-6d656d74", []),  # of each of them
    ],
)
def test_a_process_sees_the_gpus_that_its_environment_names(
    node: Any, monkeypatch: pytest.MonkeyPatch, visible: str, numbers: list[int]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)  # after the library is loaded, as a script does
    count, text = ctypes.c_int(-1), ctypes.create_string_buffer(64)
    assert node.cudaGetDeviceCount(ctypes.byref(count)) == (0 if numbers else _NO_GPU)
    assert count.value == len(numbers)
    for ordinal, number in enumerate(numbers):
        assert node.cudaSetDevice(ordinal) == 0
        node.cudaDeviceGetPCIBusId(text, 64, ordinal)
        assert text.value == b"0000:%02x:00.0" % (number + 1)
    assert node.cudaSetDevice(len(numbers)) == (_NO_DEVICE if numbers else _NO_GPU)
    if numbers:
        _allocate(node, 2 * MIB)  # on the last, which NVML knows by its number on the node
        handle, memory = ctypes.c_void_p(), (ctypes.c_ulonglong * 3)()
        assert node.nvmlDeviceGetHandleByIndex_v2(numbers[-1], ctypes.byref(handle)) == 0
        node.nvmlDeviceGetMemoryInfo(handle, memory)
        assert memory[2] == 102 * MIB
        assert node.emulated_used_peak(len(numbers) - 1) == 2 * MIB


def test_a_missing_gpu_named_by_the_environment_is_reported(
    node: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    node.cudaGetDeviceCount(ctypes.byref(ctypes.c_int()))
    assert capfd.readouterr().err == (
        "memtune: emulated GPU: CUDA_VISIBLE_DEVICES names GPU 7, and the last one is 3; --gpus gives a command more\n"
    )


def test_each_gpu_of_a_node_has_a_number_and_memory_of_its_own(node: Any) -> None:
    library = node
    number, address = ctypes.c_int(), ctypes.c_void_p()
    assert library.cudaGetDeviceCount(ctypes.byref(number)) == 0
    assert number.value == 4
    assert library.cudaSetDevice(4) == _NO_DEVICE
    assert library.cudaSetDevice(3) == 0
    library.cudaGetDevice(ctypes.byref(number))
    assert number.value == 3
    code, of_third = _allocate(library, 2 * MIB)
    assert code == 0
    assert _free_bytes(library) == GIB - 102 * MIB
    library.cudaSetDevice(0)
    assert _free_bytes(library) == GIB - 100 * MIB
    attributes = (ctypes.c_int * 6)()
    library.cudaPointerGetAttributes(attributes, ctypes.c_void_p(of_third))
    assert attributes[1] == 3
    ordinal = 9
    assert library.cuPointerGetAttribute(ctypes.byref(number), ordinal, ctypes.c_uint64(of_third)) == 0
    assert number.value == 3
    text = ctypes.create_string_buffer(64)
    for index in (0, 3):
        assert library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(address)) == 0
        library.nvmlDeviceGetUUID(address, text, 64)
        assert library.nvmlDeviceGetHandleByUUID(text, ctypes.byref(address)) == 0
        library.nvmlDeviceGetIndex(address, ctypes.byref(number))
        assert number.value == index
        library.cudaDeviceGetPCIBusId(text, 64, index)
        assert library.nvmlDeviceGetHandleByPciBusId_v2(text, ctypes.byref(address)) == 0
        library.nvmlDeviceGetIndex(address, ctypes.byref(number))
        assert number.value == index
        memory = (ctypes.c_ulonglong * 3)()
        library.nvmlDeviceGetMemoryInfo(address, memory)
        assert memory[2] == (102 if index == 3 else 100) * MIB
    assert library.cudaFree(ctypes.c_void_p(of_third)) == 0  # whichever GPU is the current one
    assert [_used_peak(library, gpu) for gpu in range(4)] == [0, 0, 0, 2 * MIB]
    library.cudaSetDevice(3)
    assert _free_bytes(library) == GIB - 100 * MIB


def test_one_gpu_that_is_full_takes_nothing_from_another(node: Any) -> None:
    code, _ = _allocate(node, 900 * MIB)
    assert code == 0
    assert _allocate(node, 900 * MIB)[0] == _OUT_OF_MEMORY
    handle, size = ctypes.c_uint64(), ctypes.c_size_t(500 * MIB)
    codes = {gpu: node.cuMemCreate(ctypes.byref(handle), size, _on(gpu), 0) for gpu in (0, 2, 4)}
    assert codes == {0: _OUT_OF_MEMORY, 2: 0, 4: _OUT_OF_MEMORY}
    assert _used_peak(node, 2) == 500 * MIB
    assert node.cuMemRelease(handle) == 0
    node.cudaSetDevice(2)
    assert _free_bytes(node) == GIB - 100 * MIB


@pytest.mark.parametrize(("product", "can"), [("NVIDIA H100 80GB HBM3", 1), ("NVIDIA GeForce RTX 4090", 0)])
def test_gpus_of_a_node_reach_one_another(built: Path, monkeypatch: pytest.MonkeyPatch, product: str, can: int) -> None:
    monkeypatch.setenv("MEMTUNE_EMULATED_GPU", f"{_GPU.replace('NVIDIA H100 80GB HBM3', product)};gpus=2")
    library, found = ctypes.CDLL(str(built)), ctypes.c_int()
    library.cudaDeviceCanAccessPeer(ctypes.byref(found), 0, 1)
    assert (found.value, library.cudaDeviceEnablePeerAccess(1, 0)) == (can, 0)
    library.cudaDeviceCanAccessPeer(ctypes.byref(found), 1, 1)
    assert found.value == 0
    _ctypes.dlclose(library._handle)


def test_a_process_may_have_a_communicator_for_each_gpu(node: Any) -> None:
    communicators, number = (ctypes.c_void_p * 3)(), ctypes.c_int()
    assert node.ncclCommInitAll(communicators, 3, None) == 0
    for rank, communicator in enumerate(communicators):
        node.ncclCommUserRank(ctypes.c_void_p(communicator), ctypes.byref(number))
        assert number.value == rank
        node.ncclCommCount(ctypes.c_void_p(communicator), ctypes.byref(number))
        assert number.value == 3
    sent, received = (ctypes.c_int64 * 1)(7), (ctypes.c_int64 * 1)()
    for communicator, place in zip(communicators, (None, received, None), strict=True):
        shape = (ctypes.c_size_t(1), 4, 0, 1)
        assert node.ncclReduce(sent, place, *shape, ctypes.c_void_p(communicator), None) == 0
    assert list(received) == [7]


def _on(gpu: int) -> Any:
    """Properties of a physical piece: types of it, of handles and of its place, and the GPU."""
    return (ctypes.c_int * 4)(1, 0, 1, gpu)


def test_an_out_of_memory_error_stays_until_it_is_queried(library: Any) -> None:
    assert _allocate(library, GIB) == (_OUT_OF_MEMORY, 0)
    assert library.cudaPeekAtLastError() == _OUT_OF_MEMORY
    assert library.cudaGetLastError() == _OUT_OF_MEMORY
    assert library.cudaGetLastError() == 0
    library.cudaGetErrorString.restype = ctypes.c_char_p
    assert library.cudaGetErrorString(_OUT_OF_MEMORY) == b"out of memory"


def test_freeing_an_unknown_pointer_is_an_error(library: Any) -> None:
    _, address = _allocate(library, MIB)
    assert library.cudaFree(ctypes.c_void_p(address + 4096)) != 0
    assert library.cudaFree(ctypes.c_void_p(address)) == 0
    assert library.cudaFree(ctypes.c_void_p(address)) != 0


def test_pointer_attributes_name_the_memory_kind(library: Any) -> None:
    class Attributes(ctypes.Structure):
        _fields_ = [
            ("type", ctypes.c_int),
            ("device", ctypes.c_int),
            ("there", ctypes.c_void_p),
            ("here", ctypes.c_void_p),
        ]

    def kind(address: int) -> int:
        attributes = Attributes()
        library.cudaPointerGetAttributes(ctypes.byref(attributes), ctypes.c_void_p(address))
        return int(attributes.type)

    _, device = _allocate(library, 4 * MIB)
    pinned = ctypes.c_void_p()
    library.cudaHostAlloc(ctypes.byref(pinned), ctypes.c_size_t(100), 0)
    assert kind(device + 3 * MIB) == 2
    assert kind(pinned.value or 0) == 1
    assert kind(ctypes.addressof(ctypes.c_int())) == 0


def test_small_copies_are_real_and_large_ones_take_no_memory(library: Any) -> None:
    _, device = _allocate(library, 512 * MIB)
    source, target = ctypes.create_string_buffer(b"memtune", 8), ctypes.create_string_buffer(8)
    library.cudaMemcpy(ctypes.c_void_p(device), source, ctypes.c_size_t(8), 1)
    library.cudaMemcpy(target, ctypes.c_void_p(device), ctypes.c_size_t(8), 2)
    assert target.value == b"memtune"
    before = _resident_pages()
    library.cudaMemset(ctypes.c_void_p(device), 1, ctypes.c_size_t(512 * MIB))
    assert _resident_pages() - before < 1000
    assert ctypes.string_at(device, 7) == b"memtune"


def test_a_copy_that_is_left_out_brings_zeros_to_the_host(library: Any) -> None:
    """DeepSpeed's CPU optimizer skips its step where a gradient is no number, as what lay there before may be."""
    size, rows, pitch = 4 * MIB, 4, 2 * MIB
    _, device = _allocate(library, 16 * MIB)
    host = (ctypes.c_ubyte * (size + 2)).from_buffer(bytearray(b"\xff") * (size + 2))
    to, source = ctypes.addressof(host) + 1, ctypes.c_void_p(device)
    library.cudaMemcpy(ctypes.c_void_p(to), source, ctypes.c_size_t(size), 2)
    assert bytes(host) == b"\xff" + bytes(size) + b"\xff"
    host = (ctypes.c_ubyte * (rows * pitch)).from_buffer(bytearray(b"\xff") * (rows * pitch))
    to, width = ctypes.addressof(host), ctypes.c_size_t(MIB)
    library.cudaMemcpy2DAsync(
        ctypes.c_void_p(to), ctypes.c_size_t(pitch), source, width, width, ctypes.c_size_t(rows), 2, None
    )
    assert bytes(host) == (bytes(MIB) + b"\xff" * MIB) * rows


def _resident_pages() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1])


@pytest.fixture
def of_a_run(library: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The library in one of a run's processes, of which each has a context of 50 MiB."""
    monkeypatch.setenv("MEMTUNE_EMULATED_GPU", f"{_GPU};context={50 * MIB}")
    library.emulated_configure()
    (tmp_path / "processes").touch()
    monkeypatch.setenv("MEMTUNE_EMULATED_PROCESSES", str(tmp_path / "processes"))
    return library


@pytest.fixture
def child(of_a_run: Any, built: Path) -> Iterator[subprocess.Popen[str]]:
    """A process of the same run, with 300 MiB of the GPU until it is told to end."""
    code = (
        f"import ctypes; library = ctypes.CDLL({str(built)!r}); address = ctypes.c_void_p()\n"
        f"assert library.cudaMalloc(ctypes.byref(address), ctypes.c_size_t({300 * MIB})) == 0\nprint('took'); input()"
    )
    words = [sys.executable, "-uc", code]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "took\n"
        assert _free_bytes(of_a_run) == GIB - 400 * MIB, "one context is in what lies outside"
        yield process
        process.kill()


def test_processes_of_a_run_share_its_gpu_each_with_a_context(library: Any, child: subprocess.Popen[str]) -> None:
    library.emulated_others_left.restype = ctypes.c_uint64
    sizes = (ctypes.c_uint64 * 3)()
    places = [ctypes.byref(sizes, 8 * place) for place in range(3)]
    assert (library.emulated_others(0, *places), list(sizes)) == (1, [350 * MIB, 300 * MIB, 300 * MIB])
    assert _allocate(library, 200 * MIB)[0] == 0
    assert _free_bytes(library) == GIB - 650 * MIB
    assert _allocate(library, 400 * MIB)[0] == _OUT_OF_MEMORY
    assert _running(library) == {os.getpid(): 300 * MIB, child.pid: 350 * MIB}
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    # Nobody has asked for its exit code, and its memory is free.
    assert _free_bytes(library) == GIB - 300 * MIB
    assert library.emulated_others_left(0) == 350 * MIB
    assert _allocate(library, 400 * MIB)[0] == 0
    assert (library.emulated_others(0, *places), list(sizes)) == (1, [350 * MIB, 600 * MIB, 950 * MIB])


@pytest.mark.usefixtures("child")
def test_a_process_that_finds_no_memory_has_a_context(library: Any) -> None:
    assert _allocate(library, GIB)[0] == _OUT_OF_MEMORY
    assert _free_bytes(library) == GIB - 450 * MIB
    sizes = (ctypes.c_uint64 * 3)()
    library.emulated_others(0, *(ctypes.byref(sizes, 8 * place) for place in range(3)))
    assert list(sizes) == [350 * MIB, 350 * MIB, 350 * MIB]


def test_processes_that_ended_before_the_first_use_are_not_counted_beside_it(
    library: Any, child: subprocess.Popen[str]
) -> None:
    library.emulated_others_left.restype = ctypes.c_uint64
    child.communicate("end")
    assert _allocate(library, 200 * MIB)[0] == 0
    sizes = (ctypes.c_uint64 * 3)()
    library.emulated_others(0, *(ctypes.byref(sizes, 8 * place) for place in range(3)))
    assert list(sizes) == [350 * MIB, 300 * MIB, 550 * MIB]
    assert library.emulated_others_left(0) == 0


def test_concurrent_allocations_never_exceed_the_gpus_memory(of_a_run: Any, built: Path) -> None:
    code = (
        f"import ctypes; library = ctypes.CDLL({str(built)!r}); address = ctypes.c_void_p()\n"
        f"def take(): return library.cudaMalloc(ctypes.byref(address), ctypes.c_size_t({2 * MIB})) == 0\n"
        # Each has its context before any of them takes what another's would have needed.
        "taken = take(); print('there'); input(); print(taken + sum(take() for _ in range(300))); input()"
    )
    words = [sys.executable, "-uc", code]
    children = [
        subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) for _ in range(3)
    ]
    assert [child.stdout and child.stdout.readline() for child in children] == ["there\n"] * 3
    for child in children:
        print(file=child.stdin)
    taken = sum(int(child.stdout.readline()) for child in children if child.stdout)
    sizes = (ctypes.c_uint64 * 3)()
    assert of_a_run.emulated_others(0, *(ctypes.byref(sizes, 8 * place) for place in range(3))) == 3
    # 100 lie outside, with one context of the three.
    assert taken * 2 == 1024 - 200
    assert sizes[1] == 924 * MIB
    for child in children:
        child.communicate("end")


def _running(library: Any) -> dict[int, int]:
    class Process(ctypes.Structure):
        _fields_ = [("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong)]

    handle, count, found = ctypes.c_void_p(), ctypes.c_uint(1), (Process * 2)()
    library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle))
    insufficient = 7
    assert library.nvmlDeviceGetComputeRunningProcesses(handle, ctypes.byref(count), found) == insufficient
    assert library.nvmlDeviceGetComputeRunningProcesses(handle, ctypes.byref(count), found) == 0
    return {each.pid: each.used for each in found[: count.value]}


def test_a_fork_has_nothing_of_its_parents_memory(library: Any) -> None:
    _, address = _allocate(library, 200 * MIB)
    if (child := os.fork()) == 0:
        own = _free_bytes(library) == GIB - 100 * MIB and library.cudaFree(ctypes.c_void_p(address)) == 0
        os._exit(0 if own and _used_peak(library, 0) == 0 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert _free_bytes(library) == GIB - 300 * MIB


def test_memory_of_another_process_is_not_taken_again(library: Any) -> None:
    class Handle(ctypes.Structure):
        _fields_ = [("bytes", ctypes.c_char * 64)]

    _, address = _allocate(library, 100 * MIB)
    _, another = _allocate(library, 100 * MIB)
    handle, other, opened = Handle(), Handle(), ctypes.c_void_p()
    assert library.cudaIpcGetMemHandle(ctypes.byref(handle), ctypes.c_void_p(address)) == 0
    assert library.cudaIpcGetMemHandle(ctypes.byref(other), ctypes.c_void_p(another)) == 0
    assert bytes(handle) != bytes(other), "torch would take both for one storage"
    assert library.cudaIpcOpenMemHandle(ctypes.byref(opened), handle, 1) == 0
    assert _free_bytes(library) == GIB - 300 * MIB
    assert library.cudaIpcCloseMemHandle(opened) == 0
    assert library.cudaIpcGetMemHandle(ctypes.byref(handle), ctypes.c_void_p(1)) != 0


def test_virtual_memory_counts_when_it_is_made_and_not_when_it_is_reserved(library: Any) -> None:
    address, handle = ctypes.c_uint64(), ctypes.c_uint64()
    size = ctypes.c_size_t(64 * GIB)
    assert library.cuMemAddressReserve(ctypes.byref(address), size, ctypes.c_size_t(0), ctypes.c_uint64(0), 0) == 0
    assert _free_bytes(library) == GIB - 100 * MIB
    assert library.cuMemCreate(ctypes.byref(handle), ctypes.c_size_t(20 * MIB), _on(0), 0) == 0
    assert _free_bytes(library) == GIB - 120 * MIB
    assert library.cuMemCreate(ctypes.byref(handle), ctypes.c_size_t(GIB), _on(0), 0) == _OUT_OF_MEMORY
    assert library.cuMemRelease(handle) == 0
    assert _free_bytes(library) == GIB - 100 * MIB
    assert library.cuMemAddressFree(address, size) == 0


def test_the_driver_answers_queries_of_newer_tritons(library: Any) -> None:
    capturing = ctypes.c_int(1)
    assert library.cuStreamIsCapturing(None, ctypes.byref(capturing)) == 0
    assert capturing.value == 0
    assert library.cuModuleUnload(None) == 0


def test_peers_hold_as_much_memory_as_this_rank(library: Any) -> None:
    communicator, ranks = ctypes.c_void_p(), ctypes.c_int()
    identity = (ctypes.c_char * 128)()

    class Identity(ctypes.Structure):
        _fields_ = [("bytes", ctypes.c_char * 128)]

    library.ncclGetUniqueId(ctypes.byref(identity))
    library.ncclCommInitRankConfig(ctypes.byref(communicator), 4, Identity.from_buffer(identity), 0, None)
    library.ncclCommCount(communicator, ctypes.byref(ranks))
    assert ranks.value == 4
    sent, received = (ctypes.c_int64 * 1)(7), (ctypes.c_int64 * 4)()
    library.ncclAllGather(sent, received, ctypes.c_size_t(1), 4, communicator, None)
    assert list(received) == [7, 7, 7, 7]
    assert list(collectives(library)) == [{"name": "all-gather", "calls": 1, "bytes": 32}]


def test_stubs_count_only_calls_whose_result_may_be_read(library: Any) -> None:
    assert list(stub_calls(library)) == []
    assert library.cublasSgemm_v2() == 0
    for _ in range(2):
        assert library.cusparseCreate() == 0
    assert list(stub_calls(library)) == [("cusparseCreate", 2)]


def test_operations_of_matrix_products_are_counted(library: Any) -> None:
    m, n, k, batch = 3, 5, 7, 11
    shape = (None, 0, 1, m, n, k)
    library.emulated_matrix_flops.restype = library.emulated_matrix_products.restype = ctypes.c_uint64
    library.cublasGemmEx(*shape)
    assert library.emulated_matrix_flops() == 2 * m * n * k
    library.cublasCgemm_v2(*shape)
    library.cublasSgemmBatched(*shape, None, None, 3, None, 7, None, None, 3, batch)
    strides = [ctypes.c_int64(each) for each in (21, 35, 15)]
    library.cublasGemmStridedBatchedEx(
        *shape, None, None, 14, 3, strides[0], None, 14, 7, strides[1], None, None, 14, 3, strides[2], batch, 68, 99
    )
    assert library.emulated_matrix_flops() == 2 * m * n * k * (1 + 4 + 2 * batch)
    assert library.emulated_matrix_products() == 4


def test_operations_of_cublas_lt_are_counted_by_the_sizes_of_its_matrices(library: Any) -> None:
    layouts = [ctypes.c_void_p() for _ in range(3)]
    for layout, (rows, columns) in zip(layouts, ((7, 3), (7, 5), (3, 5)), strict=True):
        size = [ctypes.c_uint64(each) for each in (rows, columns, rows)]
        library.cublasLtMatrixLayoutCreate(ctypes.byref(layout), 14, *size)
        library.cublasLtMatrixLayoutSetAttribute(layout, 5, ctypes.byref(ctypes.c_int(2)), ctypes.c_size_t(4))
    a, b, d = layouts
    library.cublasLtMatmul(
        None, None, None, None, a, None, b, None, None, d, None, d, None, None, ctypes.c_size_t(0), None
    )
    library.emulated_matrix_flops.restype = ctypes.c_uint64
    assert library.emulated_matrix_flops() == 2 * 3 * 5 * 7 * 2
    assert all(library.cublasLtMatrixLayoutDestroy(layout) == 0 for layout in layouts)


def test_managed_memory_gives_way_to_the_gpus_own(library: Any) -> None:
    free, address = _free_bytes(library), ctypes.c_void_p()
    assert library.cudaMallocManaged(ctypes.byref(address), ctypes.c_size_t(2 * GIB), 1) == 0
    assert _free_bytes(library) == free
    ctypes.memset(address, 1, 4096)  # the host can access it
    assert library.cudaMemPrefetchAsync(address, ctypes.c_size_t(4096), 0, None) == 0
    assert library.cudaFree(address) == 0
    assert _free_bytes(library) == free
    assert library.cudaFree(address) != 0


def _torch(directory: Path, *options: str) -> Path:
    """Make a library that needs functions of CUDA's, and one of NVIDIA's libraries; return the latter."""
    (directory / "lib").mkdir(parents=True)
    source, nvidia = directory / "torch.c", directory / "libcusparse.so.12"
    source.write_text(
        "int cudaMalloc(void), cusparseCreate(void);\nint needs(void) { return cudaMalloc() + cusparseCreate(); }"
    )
    shared = ["cc", "-shared", "-fPIC", "-Wl,--no-as-needed", *options]
    subprocess.run([*shared, "-x", "c", os.devnull, f"-Wl,-soname,{nvidia.name}", "-o", nvidia], check=True)
    subprocess.run([*shared, source, nvidia, "-o", directory / "lib" / "libtorch_cuda.so"], check=True)
    return nvidia


def test_a_library_of_nvidia_s_is_stood_in_for_once_it_is_gone(tmp_path: Path) -> None:
    nvidia = _torch(tmp_path / "torch", "-Wl,-rpath,$ORIGIN/..")

    def stand_ins() -> set[str]:
        made = build.build(tmp_path / "torch", "2.13.0", "13.0", tmp_path / "cache")
        return {path.name for path in (made / "empty").iterdir()}

    beside = stand_ins()
    nvidia.unlink()
    assert stand_ins() - beside == {nvidia.name}


def test_a_package_builds_the_gpu_without_a_compiler(tmp_path: Path) -> None:
    package, torch = tmp_path / "memtune_runner", tmp_path / "torch"
    shutil.copytree(build.SOURCES.parents[1], package)
    _torch(torch)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    subprocess.run([sys.executable, "-m", "memtune_runner.emulated.build"], check=True, env=environment)
    use = (
        "import ctypes, pathlib, sys; from memtune_runner.emulated.build import build\n"
        f"made = build(pathlib.Path({str(torch)!r}), '2.13.0', '12.6', pathlib.Path({str(tmp_path)!r}))\n"
        "standin = ctypes.CDLL(str(made / 'empty' / 'libcusparse.so.12'))\n"
        "print(standin.cusparseCreate(), standin.cudaGetLastError())"
    )
    done = subprocess.run(
        [sys.executable, "-c", use],
        check=False,
        capture_output=True,
        text=True,
        env={**environment, "PATH": "/nowhere"},
    )
    assert (done.stdout, done.stderr) == ("0 0\n", "")


@pytest.mark.parametrize("compiler", [None, "", "clang -m64"])
def test_without_a_compiler_a_checkout_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: str | None
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CC", raising=False)
    if compiler is not None:
        monkeypatch.setenv("CC", compiler)
    with pytest.raises(NoCompilerError, match="no C compiler is here, and this copy of MemTune was not built with"):
        build.compile_library(13, tmp_path / "library.so")


def test_another_release_or_machine_builds_the_libraries_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, newer = tmp_path / "cuda13.so", tmp_path / "elf.py"
    compiled.write_bytes(elf.stubs(platform.machine(), "libmemtune_gpu.so", "libc.so.6", "$ORIGIN"))
    newer.write_bytes(Path(elf.__file__).read_bytes() + b"# changed")
    monkeypatch.setattr(build, "prebuilt_library", lambda _: compiled)
    made = build.build(tmp_path / "torch", "2.13.0", "13.0", tmp_path / "cache")
    assert build.build(tmp_path / "torch", "2.13.0", "13.0", tmp_path / "cache") == made
    monkeypatch.setattr(elf, "__file__", str(newer))
    anew = build.build(tmp_path / "torch", "2.13.0", "13.0", tmp_path / "cache")
    assert anew != made
    # A home directory may be shared by machines of both kinds.
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert build.build(tmp_path / "torch", "2.13.0", "13.0", tmp_path / "cache") not in (made, anew)


def test_a_cache_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EmulationError, match=r"built in .*file/cache: .*Not a directory: .*; set XDG_CACHE_HOME"):
        build.build(tmp_path / "torch", "2.13.0", "13.0", tmp_path / "file" / "cache")
