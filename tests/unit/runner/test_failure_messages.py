"""Every wording of an out-of-memory, wordings that only look like one, and who failed first."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from itertools import pairwise
from types import FunctionType
from typing import NoReturn

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memtune.wire.report import Ending
from memtune_runner.rank.failure_causes import ProcessEnd, first_cause, of_exception, of_words

DEVICE, HOST, ERROR, KILLED = Ending.DEVICE_OOM, Ending.HOST_OOM, Ending.ERROR, Ending.KILLED

CUDA_OOM = "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.10 GiB"
DEVICE_WORDINGS = {
    "cuda": CUDA_OOM,
    "rocm": "HIP out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 63.98 GiB",
    "cuda-runtime": "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
    "cuda-driver": "CUDA driver error: out of memory",
    "cuda-name": "Search for `cudaErrorMemoryAllocation' in https://docs.nvidia.com/cuda/",
    "cudnn": "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    "cublas": "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "cusparse": "CUDA error: CUSPARSE_STATUS_ALLOC_FAILED when calling `cusparseCreate(handle)`",
    "cusolver": "cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`",
    "cufft": "cuFFT error: CUFFT_ALLOC_FAILED",
    "nccl": "NCCL error in: ProcessGroupNCCL.cpp:1691, unhandled cuda error\nCuda failure 2 'out of memory'",
    "nccl-older": "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 'out of memory'",
    "nccl-calloc": "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\n"
    "Failed to CUDA calloc async 608 bytes",
    "nccl-calloc-older": "Last error:\nFailed to CUDA calloc 4194304 bytes",
    "nccl-malloc": "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\n"
    "Failed to CUDA malloc 6291456 bytes",
    "rccl": "allocator.cc:76 NCCL WARN HIP failure 'out of memory'",
    "triton": "Triton Error [CUDA]: out of memory",
    "triton-hip": "Triton Error [HIP]:  Code: 2, Messsage: out of memory",
    "cudnn-9": "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    "driver-name": "cuLinkCreate failed: CUDA_ERROR_OUT_OF_MEMORY",
    "hip-name": "hipErrorOutOfMemory",
    "bitsandbytes": "Error out of memory at line 88 in file /src/csrc/ops.cu",
    "flash-attention": "CUDA error (/src/csrc/flash_attn/src/flash_fwd_launch_template.h:204): out of memory",
    "transformer-engine": "/src/transformer_engine/common/util/rtc.cpp:45 in function f: CUDA Error: out of memory",
}
HOST_WORDINGS = {
    "torch": "[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to "
    "allocate 4000000000000 bytes. Error code 12 (Cannot allocate memory)",
    "torch-windows-words": "DefaultCPUAllocator: not enough memory: you tried to allocate 400 bytes.",
    "c++": "std::bad_alloc",
    "fork": "[Errno 12] Cannot allocate memory",
    "numpy": "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 7.45 GiB for an array",
    "python": "MemoryError",
    "bus-error": "DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that dataloader's "
    "workers are out of shared memory. Please try to raise your shared memory limit.",
    "shm": "unable to allocate shared memory(shm) for file </torch_7_1>: Resource temporarily unavailable (11)",
    "cudnn-9": "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED",
    "nccl-pinned": "Failed to CUDA host alloc 4923392 bytes",
    "nccl": "Failed to malloc 8388608 bytes",
    "loader-killed": "DataLoader worker (pid 4242) is killed by signal: Killed. ",
}
CONSEQUENCES = {
    "abort": "NCCL communicator was aborted on rank 1.",
    "watchdog": "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE)",
    "remote": "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
    "remote-in-words": "remote process exited or there was a network error, NCCL version 2.21.5",
    "gloo-closed": "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:24530",
    "gloo-reset": "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection reset by peer",
    "pipe": "[Errno 32] Broken pipe",
}
# Libraries print these if the device has no room for their handles, and also if it is broken.
HANDLE_WORDINGS = [
    "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
    "cuDNN error: CUDNN_STATUS_NOT_INITIALIZED",
    "cusolver error: CUSOLVER_STATUS_NOT_INITIALIZED, when calling `cusolverDnCreate(handle)`",
    "CUDA error: CUSPARSE_STATUS_NOT_INITIALIZED when calling `cusparseCreate(handle)`",
]
UNRELATED = [
    "CUDA error: device-side assert triggered",
    "CUDNN_STATUS_EXECUTION_FAILED",
    "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR",
    "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_BAD_LAUNCH_PARAM",
    "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 700 'an illegal memory access'",
    "out of resource: shared memory, Required: 131072, Hardware limit: 101376. Reducing block sizes may help.",
    "Triton Error [HIP]:  Code: 1, Messsage: invalid argument",
    "CUDA error (/src/flash_fwd_launch_template.h:188): invalid argument",
    "Error invalid argument at line 88 in file /src/csrc/ops.cu",
    "Failed to allocate a seat for the workshop",
    "index 7 is out of bounds for dimension 0 with size 5",
    "the memory bank is out of memory slots",
    "use less than the CUDA memory that is free",
]


class OutOfMemoryError(RuntimeError):
    """torch's own is recognized by name and module, so that torch need not be imported."""


OutOfMemoryError.__module__ = "torch"


@pytest.mark.parametrize("words", DEVICE_WORDINGS.values(), ids=DEVICE_WORDINGS)
def test_device_out_of_memory(words: str) -> None:
    assert of_exception(RuntimeError(words)) == ProcessEnd(DEVICE, 85, f"RuntimeError: {words}")
    failure = of_words(f"step 3\n  {words}\nbye", 1)
    assert (failure.ending, failure.exit_code) == (DEVICE, 85)
    assert failure.message in words


@pytest.mark.parametrize("words", HOST_WORDINGS.values(), ids=HOST_WORDINGS)
def test_host_out_of_memory(words: str) -> None:
    assert of_exception(RuntimeError(words)) == ProcessEnd(HOST, 86, f"RuntimeError: {words}".strip())
    assert of_words(f"step 3\n{words}\nbye", 1) == ProcessEnd(HOST, 86, words.strip())


@pytest.mark.parametrize("words", CONSEQUENCES.values(), ids=CONSEQUENCES)
def test_errors_that_follow_another_rank_are_recognized(words: str) -> None:
    assert of_exception(RuntimeError(words)) == ProcessEnd(ERROR, 1, f"RuntimeError: {words}", is_consequence=True)
    assert of_words(words, 250) == ProcessEnd(KILLED, 250, words, is_consequence=True)


@pytest.mark.parametrize("words", HANDLE_WORDINGS)
def test_a_handle_that_cannot_be_made_is_an_out_of_memory_only_of_a_full_device(words: str) -> None:
    error = wrapped(RuntimeError(words))
    assert of_exception(error, lambda: True) == ProcessEnd(DEVICE, 85, f"RuntimeError: {words}")
    assert of_exception(error, lambda: False).ending is ERROR
    assert of_exception(error).ending is ERROR
    assert of_words(words, 1).ending is ERROR


def test_only_a_handle_asks_whether_the_device_is_full() -> None:
    def fail() -> bool:
        raise AssertionError("asked")

    for words in (CUDA_OOM, *UNRELATED, *CONSEQUENCES.values()):
        of_exception(RuntimeError(words), fail)


@given(st.lists(st.sampled_from([*CONSEQUENCES.values(), *UNRELATED]), min_size=1, max_size=5), st.booleans())
def test_an_echo_of_another_ranks_failure_is_no_out_of_memory(words: list[str], is_full: bool) -> None:
    error = wrapped(*map(RuntimeError, words))
    assert of_exception(error, lambda: is_full).ending is ERROR
    assert of_words("\n".join(words), 1).ending is ERROR


@pytest.mark.parametrize("words", UNRELATED)
def test_similar_messages_are_no_out_of_memory(words: str) -> None:
    assert of_exception(RuntimeError(words)) == ProcessEnd(ERROR, 1, f"RuntimeError: {words}")
    assert of_words(words, 139) == ProcessEnd(KILLED, 139, "a worker was killed by signal 11 (SIGSEGV)")


def test_an_exit_code_shows_who_chose_it() -> None:
    assert of_words("", 3) == ProcessEnd(ERROR, 3, "a worker ended with code 3")
    assert of_words("", 250) == ProcessEnd(KILLED, 250, "a worker ended with code 250")
    assert [of_words("", code).ending for code in (85, 86, 87, 88)] == [DEVICE, HOST, Ending.HUNG, Ending.BAD_INPUT]


def test_exception_types_decide_without_messages() -> None:
    assert of_exception(OutOfMemoryError("")).ending is DEVICE
    assert of_exception(MemoryError()) == ProcessEnd(HOST, 86, "MemoryError")


def test_a_type_of_the_same_name_elsewhere_is_not_torchs() -> None:
    other = type("OutOfMemoryError", (RuntimeError,), {"__module__": "game.inventory"})
    assert of_exception(other("no room for the sword")).ending is ERROR


def wrapped(*errors: BaseException) -> BaseException:
    """Return an error raised while handling the previous one, and so on."""
    outermost = ValueError("the step failed")
    for inner, outer in pairwise((*errors, outermost)):
        outer.__context__ = inner
    return outermost


def caught(raising: Callable[[], object]) -> BaseException:
    try:
        raising()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def wrapped_by_cause() -> None:
    try:
        raise OutOfMemoryError(CUDA_OOM)
    except RuntimeError as error:
        raise ValueError("layer 7 failed") from error


def wrapped_by_context() -> None:
    try:
        wrapped_by_cause()
    except ValueError:
        raise KeyError("cleanup") from None


def wrapped_by_exit() -> None:
    try:
        raise OutOfMemoryError(CUDA_OOM)
    except RuntimeError:
        raise SystemExit(3) from None


@pytest.mark.parametrize("raising", [wrapped_by_cause, wrapped_by_context, wrapped_by_exit])
def test_a_wrapped_out_of_memory_is_found(raising: Callable[[], None]) -> None:
    assert of_exception(caught(raising)) == ProcessEnd(DEVICE, 85, f"OutOfMemoryError: {CUDA_OOM}")


def test_a_cycle_of_exception_causes_ends() -> None:
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    assert of_exception(first) == ProcessEnd(ERROR, 1, "ValueError: a")


def test_a_module_that_is_not_installed_is_no_fault_of_the_code() -> None:
    error = ModuleNotFoundError("No module named 'transformers'", name="transformers")
    expected = (
        "ModuleNotFoundError: No module named 'transformers'; install it into the job's image, or without a cluster"
    )
    assert of_exception(error).message.startswith(expected)
    assert "install" not in of_exception(ImportError("cannot import name 'AutoModel'")).message


def test_a_failed_build_of_nvme_offload_names_its_requirements() -> None:
    # DeepSpeed 0.19.8, op_builder/builder.py.
    words = "Unable to JIT load the async_io op due to it not being compatible due to hardware/software issue. None"
    told = of_exception(RuntimeError(words)).message
    assert "libaio-dev" in told
    assert "DS_BUILD_AIO=1" in told


def test_an_out_of_memory_is_found_in_a_group() -> None:
    group = type("Group", (Exception,), {"exceptions": (ValueError("a"), MemoryError())})
    assert of_exception(group("two failed")).ending is HOST
    lookalike = type("Lookalike", (Exception,), {"exceptions": 5})
    assert of_exception(lookalike("odd")).ending is ERROR


def test_an_exception_that_cannot_be_shown_is_still_reported() -> None:
    def fail(_: BaseException) -> str:
        raise ZeroDivisionError

    error = type("Mute", (Exception,), {"__str__": fail})()
    assert of_exception(error) == ProcessEnd(ERROR, 1, "Mute")


def pinned_by_name() -> None:
    def pin_memory() -> None:
        raise RuntimeError("CUDA error: out of memory")

    pin_memory()


def test_pinning_host_memory_fails_in_the_words_of_the_device() -> None:
    assert of_exception(caught(pinned_by_name)).ending is HOST


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (SystemExit(), ProcessEnd(Ending.SUCCEEDED, 0, "")),
        (SystemExit(0), ProcessEnd(Ending.SUCCEEDED, 0, "")),
        (SystemExit(7), ProcessEnd(ERROR, 7, "SystemExit: 7")),
        (SystemExit(-1), ProcessEnd(ERROR, 255, "SystemExit: -1")),
        (SystemExit("no data"), ProcessEnd(ERROR, 1, "SystemExit: no data")),
        (KeyboardInterrupt(), ProcessEnd(ERROR, 130, "KeyboardInterrupt")),
    ],
)
def test_the_users_own_exit_code_is_kept(error: BaseException, failure: ProcessEnd) -> None:
    assert of_exception(error) == failure


class OwnParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SystemExit(3)


@pytest.mark.parametrize(("parser", "code"), [(argparse.ArgumentParser, 2), (OwnParser, 3)])
def test_wrong_arguments_are_reported_in_the_parsers_words(parser: type[argparse.ArgumentParser], code: int) -> None:
    def main() -> None:
        parser(prog="train.py").parse_args(["--lr-rate=3"])

    told = "train.py: error: unrecognized arguments: --lr-rate=3"
    assert of_exception(caught(main)) == ProcessEnd(ERROR, code, told, is_bad_command=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--batch", type=int, choices=[1, 2])
    return parser


@pytest.mark.parametrize(
    ("words", "is_bad"),
    [
        (["llama", "--nope", "3"], True),
        ([], True),
        (["llama", "--batch", "three"], False),  # what a shell has computed from the plan, perhaps
        (["llama", "--batch", "3"], False),
        (["llama", "--batch"], False),  # a variable that is empty under this plan
        (["llama", ""], False),
    ],
)
def test_only_a_command_wrong_for_every_plan_is_a_bad_command(words: list[str], is_bad: bool) -> None:
    assert of_exception(caught(lambda: _parser().parse_args(words))).is_bad_command is is_bad


@click.group()
@click.option("--config")
def _group(config: str | None) -> None:
    del config


@_group.command()
@click.option("--rate", type=float)
@click.argument("data")
def train(rate: float | None, data: str) -> None:
    del rate, data


@pytest.mark.parametrize(
    ("words", "expected", "is_bad"),
    [
        (["train", "data", "--lr-rate", "3"], "Error: No such option '--lr-rate'.", True),
        (["train", "data", "-x"], "Error: No such option '-x'.", True),
        (["train", "data", "-3"], "Error: No such option '-3'.", False),  # where the value before it is empty
        (["train", "data", "--rate", "fast"], "Error: Invalid value for '--rate'", False),
        (["train", "data", "3"], "Error: Got unexpected extra argument", False),
        (["train"], "Error: Missing argument 'DATA'.", False),
        (["--config", "train", "--rate", "3"], "Error: No such option '--rate'.", False),  # likewise
    ],
)
def test_an_unknown_option_is_reported_in_clicks_words(words: list[str], expected: str, is_bad: bool) -> None:
    failure = of_exception(caught(lambda: _group.main(words, "train.py")))
    assert (failure.exit_code, failure.is_bad_command) == (2, is_bad)
    assert failure.message.startswith(expected)


def test_click_may_end_the_script_while_it_handles_the_error() -> None:
    def main() -> None:
        try:
            raise click.NoSuchOption("--lr-rate", ctx=click.Context(train))
        except click.NoSuchOption as error:  # as older versions do, and typer
            sys.exit(error.exit_code)

    of_click = FunctionType(main.__code__, {**globals(), "__name__": "click.core"}, closure=main.__closure__)
    told = "Error: No such option '--lr-rate'."
    assert of_exception(caught(of_click)) == ProcessEnd(ERROR, 2, told, is_bad_command=True)
    assert not of_exception(caught(main)).is_bad_command, "a script's own exit for what it asked click"


def test_a_scripts_own_refusal_is_no_bad_command() -> None:
    refused = caught(lambda: argparse.ArgumentParser().error("the batch must be even"))
    assert not of_exception(refused).is_bad_command
    assert of_exception(refused).message.endswith(": error: the batch must be even")


def test_an_exit_after_an_exception_is_reported_by_the_exception() -> None:
    def main() -> None:
        try:
            raise ValueError("no such dataset")
        except ValueError:
            raise SystemExit(4)  # noqa: B904

    assert of_exception(caught(main)) == ProcessEnd(ERROR, 4, "ValueError: no such dataset")


def test_a_successful_exit_after_a_handled_out_of_memory_is_a_success() -> None:
    error = SystemExit(0)
    error.__context__ = OutOfMemoryError(CUDA_OOM)
    assert of_exception(error).ending is Ending.SUCCEEDED


def test_the_first_failure_that_is_no_consequence_is_the_cause() -> None:
    abort = of_exception(RuntimeError(CONSEQUENCES["abort"]))
    oom, error = of_exception(OutOfMemoryError(CUDA_OOM)), of_exception(ValueError("late"))
    assert first_cause([abort, oom, error, abort]) is oom
    assert first_cause([error, oom]) is error
    assert first_cause([abort, abort]) is abort
    with pytest.raises(ValueError, match="no failure was noted"):
        first_cause([])
