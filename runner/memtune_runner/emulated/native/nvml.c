/* NVML: what torch, pynvml and our nvidia-smi ask of the driver. What is not here, a caller finds to be missing. */
#include "emulated.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7, UUID_END = 'd' };

/* The driver that came with CUDA 13.0; drivers also run what was built for earlier releases. */
static const char driver[] = "580.65.06";
static void *handle_of(unsigned index) { return (void *)((uintptr_t)0x10 + index); }
static int index_of(void *device) { return (int)((uintptr_t)device - 0x10); }

static int written(char *text, unsigned length, const char *what) {
    return snprintf(text, length, "%s", what) < (int)length ? SUCCESS : INSUFFICIENT_SIZE;
}

int nvmlInit(void) { return SUCCESS; }
int nvmlInit_v2(void) { return SUCCESS; }
int nvmlInitWithFlags(unsigned flags) { return (void)flags, SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) {
    return code == SUCCESS ? "Success" : code == NOT_SUPPORTED ? "Not Supported" : "Not emulated";
}

int nvmlSystemGetDriverVersion(char *text, unsigned length) { return written(text, length, driver); }
int nvmlSystemGetNVMLVersion(char *text, unsigned length) { return written(text, length, driver); }
int nvmlSystemGetCudaDriverVersion(int *version) { return *version = gpu.cuda, SUCCESS; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { return *version = gpu.cuda, SUCCESS; }

int nvmlDeviceGetCount(unsigned *devices) { return *devices = gpu.gpus, SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *devices) { return nvmlDeviceGetCount(devices); }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    return index >= (unsigned)gpu.gpus ? INVALID_ARGUMENT : (*device = handle_of(index), SUCCESS);
}
int nvmlDeviceGetHandleByIndex(unsigned index, void **device) { return nvmlDeviceGetHandleByIndex_v2(index, device); }
/* The addresses and UUIDs that cudaDeviceGetPCIBusId and cudaGetDeviceProperties give: the last bytes have the number. */
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **device) {
    unsigned domain, number;
    if (sscanf(bus, "%x:%x", &domain, &number) != 2 || !number) return INVALID_ARGUMENT;
    return nvmlDeviceGetHandleByIndex_v2(number - 1, device);
}
int nvmlDeviceGetHandleByUUID(const char *text, void **device) {
    size_t length = strlen(text);
    return nvmlDeviceGetHandleByIndex_v2(length > 1 ? strtoul(text + length - 2, NULL, 16) - UUID_END : 0, device);
}

int nvmlDeviceGetIndex(void *device, unsigned *index) { return *index = index_of(device), SUCCESS; }
int nvmlDeviceGetName(void *device, char *text, unsigned length) {
    return (void)device, written(text, length, gpu.name);
}
/* The bytes of "memtune-emulated". */
void uuid_of(int index, char text[UUID_SIZE]) {
    snprintf(text, UUID_SIZE, "GPU-6d656d74-756e-652d-656d-756c617465%02x", UUID_END + index);
}
int nvmlDeviceGetUUID(void *device, char *text, unsigned length) {
    char uuid[UUID_SIZE];
    return uuid_of(index_of(device), uuid), written(text, length, uuid);
}
int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) {
    return (void)device, *major = gpu.major, *minor = gpu.minor, SUCCESS;
}

struct memory {
    unsigned long long total, free, used;
};
struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};
int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory) {
    *memory = (struct memory){.total = gpu.total, .free = gpu_free_bytes(index_of(device))};
    memory->used = memory->total - memory->free;
    return SUCCESS;
}
int nvmlDeviceGetMemoryInfo_v2(void *device, struct memory_v2 *memory) {
    struct memory found;
    nvmlDeviceGetMemoryInfo(device, &found);
    memory->total = found.total, memory->reserved = 0, memory->free = found.free, memory->used = found.used;
    return SUCCESS;
}

/* Of these, an emulated GPU has none. torch has written that there is no fabric before it asks. */
int nvmlDeviceGetGpuFabricInfoV(void *device, void *info) { return (void)device, (void)info, SUCCESS; }
int nvmlDeviceGetUtilizationRates(void *device, void *rates) { return (void)device, (void)rates, NOT_SUPPORTED; }
int nvmlDeviceGetPowerUsage(void *device, unsigned *power) { return (void)device, (void)power, NOT_SUPPORTED; }
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *temperature) {
    return (void)device, (void)sensor, (void)temperature, NOT_SUPPORTED;
}

/* torch asks who holds memory when it has run out of it, by the first version of the structure. */
struct running_process {
    int pid;
    size_t used;
};
int nvmlDeviceGetComputeRunningProcesses(void *device, unsigned *count, struct running_process *processes) {
    unsigned room = *count;
    struct running_process each = {0};
    *count = 0;
    for (int place = 0; (place = next_user(index_of(device), place, &each.pid, &each.used));)
        if ((*count)++ < room) processes[*count - 1] = each;
    return *count <= room ? SUCCESS : INSUFFICIENT_SIZE;
}
