"""Sets up torch in a process on the emulated GPU, and collects what only the emulation knows of it."""

from __future__ import annotations

import atexit
import ctypes
import importlib.util
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from multiprocessing import util
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from memtune_runner.emulated.rank_count import MOST_GPUS
from memtune_runner.emulated.unfilled_weights import UnfilledWeights
from memtune_runner.emulated.value_reads import words_of_reads
from memtune_runner.emulated.value_tracking import ValueTracking
from memtune_runner.rank.imports import ImportWatch

# Settings with which inductor captures CUDA graphs, or chooses kernels by their times.
_TIMED = (
    *("max_autotune", "max_autotune_gemm", "max_autotune_pointwise", "coordinate_descent_tuning"),
    "triton.cudagraphs",
)


class EmulatedProcess:
    """One process on the emulated GPU, as one of ``ranks``."""

    inherited: ClassVar[EmulatedProcess | None] = None
    """That of the parent from which this process was forked after the import of torch."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._compilations = 0
        self._unfilled = UnfilledWeights(lambda: self._host_bytes("VmRSS"))
        self._values = ValueTracking(self._unfilled)
        self.active = ExitStack()
        self._file_bytes = 0

    @property
    def made_up_sizes(self) -> int:
        """How often a tensor got its size from values that no kernel had computed."""
        return self._values.reads.made_up_sizes

    @property
    def resident_peak_bytes(self) -> int:
        """The most memory of this machine that the process had, which is less where random numbers were not drawn."""
        return self._host_bytes("VmHWM")

    def torch_imported(self, torch: ModuleType) -> None:
        """From here on no other rank is waited for, and values are followed."""
        from memtune_runner.emulated import pipeline, rendezvous, spawned

        if stands_for_all := "RANK" in os.environ:
            rendezvous.install(self._ranks)
        else:
            rendezvous.exchange_objects()
        spawned.install(self._ranks)
        watch = ImportWatch()
        watch.when_imported("torch.distributed.pipelining.stage", pipeline.answer_for_other_stages)
        watch.when_imported("deepspeed.runtime.zero.utils", rendezvous.agree_with_the_first)
        watch.install()
        self.follow(torch, stands_for_all)

    def follow(self, torch: ModuleType, stands_for_all: bool) -> None:
        """From here on values are followed; compiled functions are compiled if that can be."""
        if can_compile():
            # A process for each thread would take memory that is the script's own on a machine with a GPU.
            os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
            # Both keep what they timed by the GPU's name, for runs on a real one as well.
            caches = Path(tempfile.gettempdir()) / f"emulated-inductor-{os.getuid()}"
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(caches)
            os.environ["TRITON_CACHE_DIR"] = str(caches / "triton")
            compile_without_timing()
            import_inductor_late(torch)
        else:
            self._count_compilations(torch)
        self.active.callback(finish_backward_passes, torch)
        self.active.enter_context(self._values.following(stands_for_all))
        util.register_after_fork(self, EmulatedProcess._forked)

    def inherit(self) -> None:
        """Have processes that are forked from now on inherit this state."""
        EmulatedProcess.inherited = self
        self._file_bytes = max(self._file_bytes, _status_bytes("RssFile"))  # a fork that is forked again has mapped few

    def end_child(self) -> None:
        """End in a process that the script started; what it read and called is in no result."""
        self.active.close()
        for line in notes(self.measured(), "a process that the script started"):
            print(f"memtune: emulated GPU: {line}", file=sys.stderr, flush=True)

    def _forked(self) -> None:
        """Begin in a process that `multiprocessing` has forked, which ends without Python's own exit handlers."""
        self._values.reads.clear()
        self._compilations = 0
        for _, calls in _stubs(ctypes.CDLL(None)):
            calls.value = 0
        util.Finalize(None, self.end_child, exitpriority=0)

    def _host_bytes(self, name: str) -> int:
        # A fork begins with the memory of its parent, but for pages of files, which it maps again as it needs them.
        return _status_bytes(name) + max(self._file_bytes - _status_bytes("RssFile"), 0)

    def _count_compilations(self, torch: ModuleType) -> None:
        """Count compiled functions: they run uncompiled, and the result says so."""
        os.environ["TORCHDYNAMO_DISABLE"] = "1"
        plain = torch.compile

        def counted(*args: Any, **kwargs: Any) -> Any:
            self._compilations += 1
            return plain(*args, **kwargs)

        torch.compile = counted  # type: ignore[attr-defined]  # of a module

    def measured(self) -> dict[str, Any]:
        """Return the emulation's own measurements, and what makes its numbers less certain."""
        library = ctypes.CDLL(None)
        return {
            "hostPeakBytes": max(self.resident_peak_bytes, self._unfilled.peak_bytes),
            "pinnedPeakBytes": _number(library, "emulated_pinned_peak"),
            "kernelLaunches": _number(library, "emulated_launches"),
            "matrixProducts": {
                "calls": _number(library, "emulated_matrix_products"),
                "flops": _number(library, "emulated_matrix_flops"),
            },
            "collectives": list(collectives(library)),
            "stubs": [{"name": name, "calls": calls} for name, calls in stub_calls(library)],
            "compilations": self._compilations,
            "values": self._values.report(),
        }


def compile_without_timing() -> None:
    """Compile as in the default mode under any setting of the script: no kernel takes time here, and no graph is
    captured.

    A script that compiles nothing does not import torch's compiler, which takes a second.
    """
    watch = ImportWatch()
    watch.when_imported("torch._inductor.config", _time_nothing)
    watch.when_imported("torch._dynamo.backends.cudagraphs", _never_capture)
    watch.install()


def import_inductor_late(torch: Any) -> None:
    """Have torch.compile import inductor, which takes a second, for a function that is called.

    torch imports it for each that is decorated, as those of DeepSpeed's Muon are, only to tell its settings if asked.
    """
    wrapper = torch._TorchCompileInductorWrapper
    plain = wrapper.get_compiler_config

    def settings(compiler: Any) -> Any:
        return plain(compiler) if "torch._inductor.compile_fx" in sys.modules else None

    wrapper.get_compiler_config = settings


def _time_nothing(config: Any) -> None:
    for name in _TIMED:
        entry = config._config[name]  # made when torch imports it
        if hasattr(entry, "env_value_force"):
            entry.env_value_force = False  # before what a script assigns, or gives to torch.compile
        else:
            config._config[name] = False  # up to torch 2.5, where a script's own setting wins


def _never_capture(cudagraphs: Any) -> None:
    """Have the backend `cudagraphs` run its functions uncaptured, as it does itself where they cannot be captured."""
    cudagraphs.check_for_skip = lambda *_: "the emulated GPU captures none"


def can_compile() -> bool:
    """Whether torch.compile has what it needs: Triton, and the C compiler that builds Triton's launchers."""
    compilers = (os.environ.get("CC"), "gcc", "clang", "cc")
    return importlib.util.find_spec("triton") is not None and any(map(shutil.which, filter(None, compilers)))


def enter_children() -> None:
    """Have Python processes that this one starts follow values, too: what they find on their path sees to it."""
    directory = str(Path(__file__).absolute().parent / "enter")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [directory, os.environ.get("PYTHONPATH")]))
    sys.path.insert(0, directory)  # which a script may give them instead


def follow_values(torch: Any) -> None:
    """Follow values in a process that another one on the emulated GPU has started, and that has imported torch.

    It meets other ranks as it says: only the first process stands for all of them.
    """
    if torch.version.cuda:
        from memtune_runner.emulated import rendezvous

        rendezvous.exchange_objects()
        process = EmulatedProcess(1)
        process.follow(torch, stands_for_all=False)
        atexit.register(process.end_child)  # while torch is still there


def finish_backward_passes(torch: Any) -> None:
    """Wait until autograd's threads have let go of the last backward pass.

    They free Python objects that it ran with, modes and a context, after it has ended. In a Python that is ending, a
    thread that waits for the GIL is made to exit, and such an exit inside a destructor of C++ aborts the process.
    """
    if not any(map(_is_of_autograd, Path("/proc/self/task").iterdir())):
        return  # a process that was forked from one with such threads has none, and could start none
    for gpu in range(torch.cuda.device_count()):
        if torch.cuda.memory_reserved(gpu):
            with torch.inference_mode(False), torch.enable_grad():
                empty = torch.empty(0, device=f"cuda:{gpu}", requires_grad=True)  # takes no memory
                ended, gradient = empty.view(0), torch.empty_like(empty)
            # This pass must leave nothing of Python to a thread: the tensors are never freed, and `backward` would
            # give it a context.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object((empty, ended, gradient)))
            torch.autograd.Variable._execution_engine.run_backward((ended,), (gradient,), False, False, (), True, True)


def _is_of_autograd(thread: Path) -> bool:
    with suppress(OSError):  # it has ended
        return (thread / "comm").read_text().startswith("pt_autograd")
    return False


def used_gpus() -> dict[int, int]:
    """Return the most that was taken of each emulated GPU of which anything was."""
    library, count = ctypes.CDLL(None), ctypes.c_int()
    library.emulated_used_peak.restype = ctypes.c_uint64
    library.cudaGetDeviceCount(ctypes.byref(count))
    return {gpu: peak for gpu in range(count.value) if (peak := library.emulated_used_peak(gpu))}


def other_processes() -> list[dict[str, int]]:
    """Return what other processes of the run have taken of each GPU of the node, with their contexts.

    ``togetherBytes`` is the most that all had at one time, ``upperBytes`` what they would have if all peaks met: both
    with the contexts of all but one, which lies in what is outside.
    """
    library, sizes = ctypes.CDLL(None), (ctypes.c_uint64 * 3)()
    places = [ctypes.byref(sizes, place * ctypes.sizeof(ctypes.c_uint64)) for place in range(len(sizes))]
    found = []
    for gpu in range(MOST_GPUS):
        if processes := library.emulated_others(gpu, *places):
            names = ("peakBytes", "togetherBytes", "upperBytes")
            found.append({"gpu": gpu, "processes": processes, **dict(zip(names, sizes, strict=True))})
    return found


def bytes_others_left(gpu: int) -> int:
    """Return how much more other processes had at most of a GPU that this one uses than they have now."""
    library = ctypes.CDLL(None)
    library.emulated_others_left.restype = ctypes.c_uint64
    return int(library.emulated_others_left(gpu))


def resize(total_bytes: int) -> None:
    """Give the emulated GPUs another size from here on."""
    ctypes.CDLL(None).emulated_resize(ctypes.c_size_t(total_bytes))


def _number(library: Any, name: str) -> int:
    function = getattr(library, name)
    function.restype = ctypes.c_uint64
    return int(function())


def collectives(library: Any) -> Iterator[dict[str, Any]]:
    """Yield the kinds of collectives that were called: how often, and with how many bytes."""
    library.emulated_collective.restype = ctypes.c_char_p
    calls, size, place = ctypes.c_uint64(), ctypes.c_uint64(), 0
    while name := library.emulated_collective(ctypes.c_size_t(place), ctypes.byref(calls), ctypes.byref(size)):
        if calls.value:
            yield {"name": name.decode(), "calls": calls.value, "bytes": size.value}
        place += 1


def notes(measured: Mapping[str, Any], reader: str = "the script") -> Iterator[str]:
    """Say what makes the numbers of a process less certain."""
    if reads := words_of_reads(measured["values"], reader):
        yield reads
    if measured["compilations"]:
        yield "torch.compile found no Triton or no C compiler and compiled nothing, which may take other memory"
    if measured["stubs"]:
        names = ", ".join(each["name"] for each in measured["stubs"])
        yield f"{reader} called functions that only pretended to succeed: {names}"


def stub_calls(library: Any) -> Iterator[tuple[str, int]]:
    """Yield the functions that only pretended to succeed, and how often each was called."""
    return ((name, calls.value) for name, calls in _stubs(library) if calls.value)


def _stubs(library: Any) -> Iterator[tuple[str, ctypes.c_uint64]]:
    name_at, calls_at = (
        ctypes.addressof(ctypes.c_char.in_dll(library, name)) for name in ("emulated_stub_names", "emulated_stub_calls")
    )
    while name := ctypes.string_at(name_at):
        yield name.decode(), ctypes.c_uint64.from_address(calls_at)
        name_at, calls_at = name_at + len(name) + 1, calls_at + ctypes.sizeof(ctypes.c_uint64)


def _status_bytes(name: str) -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    match = re.search(rf"{name}:\s+(\d+) kB", status)
    return int(match[1]) * 1024 if match else 0
