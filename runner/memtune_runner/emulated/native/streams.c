/* Streams, events and launches. All work is over as soon as it is asked for. */
#define _GNU_SOURCE
#include "emulated.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

static uint64_t launches;

void *new_handle(void) {
    static uintptr_t next = 0x1000;
    return (void *)__atomic_add_fetch(&next, 16, __ATOMIC_RELAXED);
}

int cudaStreamCreate(void **stream) { return *stream = new_handle(), SUCCESS; }
int cudaStreamCreateWithFlags(void **stream, unsigned flags) { return (void)flags, cudaStreamCreate(stream); }
int cudaStreamCreateWithPriority(void **stream, unsigned flags, int priority) {
    return (void)flags, (void)priority, cudaStreamCreate(stream);
}
int cudaStreamDestroy(void *stream) { return (void)stream, SUCCESS; }
int cudaStreamQuery(void *stream) { return (void)stream, SUCCESS; }
int cudaStreamSynchronize(void *stream) { return (void)stream, SUCCESS; }
int cudaDeviceSynchronize(void) { return SUCCESS; }
int cudaStreamWaitEvent(void *stream, void *event, unsigned flags) {
    return (void)stream, (void)event, (void)flags, SUCCESS;
}
int cudaStreamGetPriority(void *stream, int *priority) { return (void)stream, *priority = 0, SUCCESS; }
int cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { return *least = 0, *greatest = -5, SUCCESS; }
int cudaStreamBeginCapture(void *stream, int mode) { return (void)stream, (void)mode, fail(CANNOT_CAPTURE); }
int cudaStreamIsCapturing(void *stream, int *status) { return (void)stream, *status = 0, SUCCESS; }
int cuStreamIsCapturing(void *stream, int *status) { return cudaStreamIsCapturing(stream, status); }

/* Release 13 has one more result at the end; the two first are the only ones that are read when nothing is captured. */
int cudaStreamGetCaptureInfo(void *stream, int *status, uint64_t *id) {
    (void)stream;
    *status = 0;
    if (id) *id = 0;
    return SUCCESS;
}
int cudaStreamGetCaptureInfo_v2(void *stream, int *status, uint64_t *id) {
    return cudaStreamGetCaptureInfo(stream, status, id);
}
int cudaThreadExchangeStreamCaptureMode(int *mode) { return *mode = 0, SUCCESS; }

int cudaStreamAddCallback(void *stream, void (*call)(void *, int, void *), void *data, unsigned flags) {
    (void)flags;
    call(stream, SUCCESS, data);
    return SUCCESS;
}

int cudaLaunchHostFunc(void *stream, void (*call)(void *), void *data) {
    (void)stream;
    call(data);
    return SUCCESS;
}

/* An event is the moment at which it was recorded. */
int cudaEventCreateWithFlags(void **event, unsigned flags) {
    (void)flags;
    *event = calloc(1, sizeof(struct timespec));
    return *event ? SUCCESS : fail(OUT_OF_MEMORY);
}
int cudaEventCreate(void **event) { return cudaEventCreateWithFlags(event, 0); }
int cudaEventDestroy(void *event) { return free(event), SUCCESS; }
int cudaEventRecord(void *event, void *stream) {
    return (void)stream, clock_gettime(CLOCK_MONOTONIC, event), SUCCESS;
}
int cudaEventRecordWithFlags(void *event, void *stream, unsigned flags) {
    return (void)flags, cudaEventRecord(event, stream);
}
int cudaIpcGetEventHandle(void *handle, void *event) { return (void)handle, (void)event, SUCCESS; }
int cudaIpcOpenEventHandle(void **event) { return cudaEventCreate(event); }
int cudaEventQuery(void *event) { return (void)event, SUCCESS; }
int cudaEventSynchronize(void *event) { return (void)event, SUCCESS; }
int cudaEventElapsedTime(float *milliseconds, void *start, void *end) {
    struct timespec *from = start, *to = end;
    *milliseconds = (to->tv_sec - from->tv_sec) * 1e3f + (to->tv_nsec - from->tv_nsec) * 1e-6f;
    return SUCCESS;
}
int cudaEventElapsedTime_v2(float *milliseconds, void *start, void *end) {
    return cudaEventElapsedTime(milliseconds, start, end);
}

/* Modules and kernels: registered, found, launched, never run. A kernel is known by the host function that stands for it. */
void **__cudaRegisterFatBinary(void *binary) {
    static void *modules[1];
    return (void)binary, modules;
}
void __cudaRegisterFatBinaryEnd(void **module) { (void)module; }
void __cudaUnregisterFatBinary(void **module) { (void)module; }
void __cudaRegisterFunction(void **module) { (void)module; }
void __cudaRegisterVar(void **module) { (void)module; }
char __cudaInitModule(void **module) { return (void)module, 1; }
unsigned __cudaPushCallConfiguration(void) { return SUCCESS; }
int __cudaPopCallConfiguration(void) { return SUCCESS; }
int __cudaGetKernel(void **kernel, const void *function) { return *kernel = (void *)function, SUCCESS; }
int cudaGetFuncBySymbol(void **kernel, const void *function) { return __cudaGetKernel(kernel, function); }
int cudaLibraryLoadData(void **library) { return *library = new_handle(), SUCCESS; }
int cudaLibraryGetKernel(void **kernel) { return *kernel = new_handle(), SUCCESS; }
int cudaGetSymbolAddress(void **address, const void *symbol) { return *address = (void *)symbol, SUCCESS; }

static int launch(void) { return __atomic_add_fetch(&launches, 1, __ATOMIC_RELAXED), SUCCESS; }
int __cudaLaunchKernel(void) { return launch(); }
int cudaLaunchKernel(void) { return launch(); }
int cudaLaunchKernelExC(void) { return launch(); }
int cudaLaunchCooperativeKernel(void) { return launch(); }
int cuLaunchKernel(void) { return launch(); }
int cuLaunchKernelEx(void) { return launch(); }
int cuLaunchCooperativeKernel(void) { return launch(); }
uint64_t emulated_launches(void) { return launches; }
