"""The words in which torch, CUDA, NCCL and others say that memory ran out, or that another rank is gone.

`failure_causes` matches them against exceptions and logs.
"""

import re

# The source of each wording is named beside it. A run that shows none of them did not run out of memory.
DEVICE_OOM = re.compile(
    r"(?:CUDA|HIP) out of memory\. Tried to allocate"  # CUDACachingAllocator.cpp (pytorch)
    r"|(?:CUDA|HIP)(?: driver)? error: out of memory"  # CUDAException.cpp, CUDADriverAPI (pytorch): outside the cache
    r"|CUDA Error: out of memory"  # logging.h (TransformerEngine)
    r"|CUDA error \([^()\n]+:\d+\): out of memory"  # CHECK_CUDA (flash-attention)
    r"|\bError out of memory at line \d+ in file"  # CUDA_CHECK_RETURN (bitsandbytes), which ends the process
    r"|cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY|hipErrorOutOfMemory"  # the runtimes' and drivers' names
    r"|CUDNN_STATUS_ALLOC_FAILED|CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"  # cuDNN to 8, and from 9
    r"|CUBLAS_STATUS_ALLOC_FAILED"
    r"|CUSPARSE_STATUS_ALLOC_FAILED"
    r"|CUSOLVER_STATUS_ALLOC_FAILED"
    r"|CUFFT_ALLOC_FAILED"
    r"|(?:Cuda|HIP) failure (?:2 )?'out of memory'"  # checks.h (NCCL, RCCL), carried by torch's DistBackendError
    r"|Failed to CUDA [cm]alloc(?: async)? \d+ bytes"  # alloc.h (NCCL): printed after the line above, and so hides it
    r"|Triton Error \[CUDA\]: out of memory"
    r"|Triton Error \[HIP\]: +Code: 2\b"  # backends/amd/driver.c (triton); 2 is hipErrorOutOfMemory
)
HOST_OOM = re.compile(
    r"DefaultCPUAllocator: (?:can't|not enough memory: you tried to) allocate"  # alloc_cpu.cpp (pytorch)
    r"|std::bad_alloc"
    r"|\bCannot allocate memory\b"  # ENOMEM, from fork, mmap and shm_open
    r"|^MemoryError\b"
    r"|_ArrayMemoryError: Unable to allocate"  # numpy
    r"|CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED"
    r"|Failed to CUDA host alloc \d+ bytes|\bFailed to malloc \d+ bytes"  # alloc.h (NCCL); the first is pinned memory
    r"|workers are out of shared memory"  # torch/utils/data/_utils/signal_handling.py, after a bus error
    r"|unable to allocate shared memory"  # MapAllocator.cpp (pytorch)
    r"|DataLoader worker \(pid \d+\) is killed by signal: Killed",
    re.MULTILINE,
)
# A library could not create its handle: either no memory was left, or the device or driver is broken.
NO_HANDLE = re.compile(r"(?:CUBLAS|CUDNN|CUSPARSE|CUSOLVER)_STATUS_NOT_INITIALIZED")
# Ranks print these when another rank is gone; they are never the cause of a failure.
CONSEQUENCE = re.compile(
    r"NCCL communicator was aborted"
    r"|Watchdog caught collective operation timeout"
    r"|ncclRemoteError|remote process exited or there was a network error"
    r"|Connection closed by peer|Connection reset by peer|Broken pipe"
)
