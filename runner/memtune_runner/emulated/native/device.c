/* The GPU's properties: they decide which kernels and which workspaces torch takes. */
#include "emulated.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct gpu gpu = {.gpus = 1};
static __thread int current;
/* What a process sees of the node's GPUs; as long as it has asked for none, that is not known. */
static int seen[MOST_GPUS], seen_count = -1;

static long long number(const char *text, const char *name) {
    char key[48];
    snprintf(key, sizeof key, ";%s=", name);
    const char *found = strstr(text, key);
    return found ? strtoll(found + strlen(key), NULL, 10) : 0;
}

/* Reads `name=NVIDIA H100 80GB HBM3;total=84934656000;sms=132;...`, which the launching process has written; again in
 * a fork whose GPU is another one. */
__attribute__((constructor)) void emulated_configure(void) {
    const char *text = getenv("MEMTUNE_EMULATED_GPU");
    seen_count = -1;
    if (!text) return;
    if (!strncmp(text, "name=", 5)) snprintf(gpu.name, sizeof gpu.name, "%.*s", (int)strcspn(text + 5, ";"), text + 5);
    gpu.total = number(text, "total"), gpu.outside = number(text, "outside"), gpu.context = number(text, "context");
    gpu.major = number(text, "major"), gpu.minor = number(text, "minor"), gpu.sms = number(text, "sms");
    gpu.threads_per_sm = number(text, "threads_per_sm"), gpu.blocks_per_sm = number(text, "blocks_per_sm");
    gpu.shared_per_sm = number(text, "shared_per_sm"), gpu.shared_reserved = number(text, "shared_reserved");
    gpu.shared_per_block_optin = number(text, "shared_per_block_optin"), gpu.l2 = number(text, "l2");
    gpu.cudnn = number(text, "cudnn"), gpu.nccl = number(text, "nccl");
    gpu.cublas = number(text, "cublas"), gpu.cuda = number(text, "cuda");
    if (number(text, "gpus")) gpu.gpus = number(text, "gpus"); /* at most MOST_GPUS */
    /* These are the same on every GPU that torch still knows. */
    gpu.warp = 32, gpu.registers_per_sm = 65536, gpu.shared_per_block = 49152;
}

struct device_properties {
    char name[256], uuid[16], luid[8];
    unsigned luid_mask;
    size_t total, shared_per_block;
    int registers_per_block, warp;
    size_t pitch;
    int threads_per_block, block[3], grid[3];
#if CUDA_MAJOR < 13
    int clock;
#endif
    size_t constant;
    int major, minor;
    size_t texture_alignment, texture_pitch_alignment;
#if CUDA_MAJOR < 13
    int overlap;
#endif
    int sms;
#if CUDA_MAJOR < 13
    int timeout;
#endif
    int integrated, maps_host;
#if CUDA_MAJOR < 13
    int compute_mode;
    int linear_texture;
#endif
    int textures_and_surfaces[39];
    size_t surface_alignment;
    int concurrent_kernels, ecc, pci_bus, pci_device, pci_domain, tcc, copy_engines, unified_addressing;
#if CUDA_MAJOR < 13
    int memory_clock;
#endif
    int memory_bus, l2, l2_persisting, threads_per_sm, priorities, global_l1, local_l1;
    size_t shared_per_sm;
    int registers_per_sm, managed, multi_gpu_board, board_group, host_atomics;
#if CUDA_MAJOR < 13
    int double_ratio;
#endif
    int pageable, concurrent_managed, preemption, host_pointers, cooperative;
#if CUDA_MAJOR < 13
    int cooperative_devices;
#endif
    size_t shared_per_block_optin;
    int page_tables, direct_managed, blocks_per_sm, access_window;
    size_t shared_reserved;
};

/* The GPU of an entry of CUDA_VISIBLE_DEVICES, which begins with a number or with enough of an UUID; or -1. */
static int named(const char *entry) {
    char *end;
    entry += strspn(entry, " ");
    if (strncmp(entry, "GPU-", 4)) {
        long index = strtol(entry, &end, 10);
        if (end == entry || index < 0) return -1;
        if (index < gpu.gpus) return index;
        fprintf(stderr, "memtune: emulated GPU: CUDA_VISIBLE_DEVICES names GPU %ld, and the last one is %d; "
                        "--gpus gives a command more\n", index, gpu.gpus - 1);
        return -1;
    }
    int found = -1, count = 0;
    for (int index = 0; index < gpu.gpus; index++) {
        char uuid[UUID_SIZE];
        uuid_of(index, uuid);
        if (!strncmp(entry, uuid, strcspn(entry, " ,"))) found = index, count++;
    }
    return count == 1 ? found : -1;
}

/* How many GPUs the process sees. As in the driver, the variable counts when a process first asks, up to the first
 * entry that names none; no GPU is seen if one is named twice. */
int devices(void) {
    if (seen_count >= 0) return seen_count;
    const char *entry = getenv("CUDA_VISIBLE_DEVICES");
    int count = 0;
    if (!entry)
        for (; count < gpu.gpus; count++) seen[count] = count;
    for (int index; entry && (index = named(entry)) >= 0; entry = strchr(entry, ','), entry += !!entry) {
        for (int before = 0; before < count; before++)
            if (seen[before] == index) return seen_count = 0;
        seen[count++] = index;
    }
    return seen_count = count;
}
int is_gpu(int device) { return device >= 0 && device < devices(); }
int gpu_of(int device) { return seen[device]; }

int cudaGetDeviceProperties(struct device_properties *properties, int device) {
    if (!is_gpu(device)) return fail(INVALID_DEVICE);
    memset(properties, 0, sizeof *properties);
    memcpy(properties->name, gpu.name, sizeof gpu.name);
    memcpy(properties->uuid, "memtune-emulated", sizeof properties->uuid);
    properties->uuid[sizeof properties->uuid - 1] += gpu_of(device);
    properties->total = gpu.total, properties->shared_per_block = gpu.shared_per_block;
    properties->registers_per_block = properties->registers_per_sm = gpu.registers_per_sm;
    properties->warp = gpu.warp, properties->threads_per_block = 1024;
    properties->block[0] = properties->block[1] = 1024, properties->block[2] = 64;
    properties->grid[0] = 0x7fffffff, properties->grid[1] = properties->grid[2] = 65535;
    properties->constant = 65536, properties->texture_alignment = 512, properties->pitch = 0x7fffffff;
    properties->major = gpu.major, properties->minor = gpu.minor, properties->sms = gpu.sms;
    properties->maps_host = properties->concurrent_kernels = properties->unified_addressing = 1;
    properties->managed = properties->cooperative = 1, properties->pci_bus = 1 + gpu_of(device);
    properties->l2 = gpu.l2, properties->threads_per_sm = gpu.threads_per_sm;
    properties->shared_per_sm = gpu.shared_per_sm, properties->shared_per_block_optin = gpu.shared_per_block_optin;
    properties->blocks_per_sm = gpu.blocks_per_sm, properties->shared_reserved = gpu.shared_reserved;
    return SUCCESS;
}
int cudaGetDeviceProperties_v2(struct device_properties *properties, int device) {
    return cudaGetDeviceProperties(properties, device);
}

static int attribute(int which) {
    switch (which) {
    case 1: case 2: case 3: return 1024; /* threads of a block, and its first two dimensions */
    case 4: return 64;
    case 5: return 0x7fffffff; /* the grid's first dimension */
    case 6: case 7: return 65535;
    case 8: return gpu.shared_per_block;
    case 10: return gpu.warp;
    case 12: case 82: return gpu.registers_per_sm;
    case 16: return gpu.sms;
    case 38: return gpu.l2;
    case 39: return gpu.threads_per_sm;
    case 41: case 83: case 95: case 102: return 1; /* unified and managed memory, cooperative launches, mapping */
    case 75: return gpu.major;
    case 76: return gpu.minor;
    case 81: return gpu.shared_per_sm;
    case 97: return gpu.shared_per_block_optin;
    case 106: return gpu.blocks_per_sm;
    case 111: return gpu.shared_reserved;
    default: return 0;
    }
}

int cudaDeviceGetAttribute(int *value, int which, int device) { return (void)device, *value = attribute(which), SUCCESS; }
int cuDeviceGetAttribute(int *value, int which, int device) { return (void)device, *value = attribute(which), SUCCESS; }

int current_device(void) { return current; }
static int refused(void) { return fail(devices() ? INVALID_DEVICE : NO_DEVICE); }
int cudaGetDeviceCount(int *count) { return (*count = devices()) ? SUCCESS : fail(NO_DEVICE); }
int cudaGetDevice(int *device) { return *device = current, devices() ? SUCCESS : fail(NO_DEVICE); }
int cudaSetDevice(int device) { return is_gpu(device) ? (current = device, SUCCESS) : refused(); }
/* Over NVLink or PCIe; the driver has no such access between GeForce cards. */
int cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    return *can = device != peer && !strstr(gpu.name, "GeForce"), SUCCESS;
}
int cudaDeviceEnablePeerAccess(int peer, unsigned flags) { return (void)peer, (void)flags, SUCCESS; }
int cudaDeviceGetPCIBusId(char *text, int size, int device) {
    if (!is_gpu(device)) return fail(INVALID_DEVICE);
    return snprintf(text, size, "0000:%02x:00.0", 1 + gpu_of(device)), SUCCESS;
}
int cudaRuntimeGetVersion(int *version) { return *version = gpu.cuda, SUCCESS; }
int cudaDriverGetVersion(int *version) { return *version = gpu.cuda, SUCCESS; }

struct function_attributes {
    size_t shared, constant, local;
    int threads_per_block, registers, ptx, binary, cache, dynamic_shared, carveout;
};

int cudaFuncGetAttributes(struct function_attributes *attributes, const void *function) {
    (void)function;
    memset(attributes, 0, sizeof *attributes);
    attributes->threads_per_block = 1024, attributes->registers = 32;
    attributes->ptx = attributes->binary = gpu.major * 10 + gpu.minor;
    attributes->dynamic_shared = gpu.shared_per_block;
    return SUCCESS;
}
int cuFuncGetAttribute(int *value, int which, void *function) {
    (void)function;
    *value = which == 0 ? 1024 : which == 4 ? 32 : 0;
    return SUCCESS;
}

static int occupancy(int *blocks, int threads, size_t shared) {
    int by_threads = gpu.threads_per_sm / (threads > 0 ? threads : 1);
    int by_shared = shared ? (int)(gpu.shared_per_sm / shared) : gpu.blocks_per_sm;
    *blocks = by_threads < by_shared ? by_threads : by_shared;
    if (*blocks > gpu.blocks_per_sm) *blocks = gpu.blocks_per_sm;
    if (*blocks < 1) *blocks = 1;
    return SUCCESS;
}
int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *kernel, int threads, size_t shared) {
    return (void)kernel, occupancy(blocks, threads, shared);
}
int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *kernel, int threads, size_t shared,
                                                           unsigned flags) {
    return (void)kernel, (void)flags, occupancy(blocks, threads, shared);
}
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void *kernel, int threads, size_t shared) {
    return (void)kernel, occupancy(blocks, threads, shared);
}

static const char *error_name(int code) {
    switch (code) {
    case SUCCESS: return "cudaSuccess";
    case OUT_OF_MEMORY: return "cudaErrorMemoryAllocation";
    case NO_DEVICE: return "cudaErrorNoDevice";
    case INVALID_DEVICE: return "cudaErrorInvalidDevice";
    case CANNOT_CAPTURE: return "cudaErrorStreamCaptureUnsupported";
    default: return "cudaErrorInvalidValue";
    }
}
const char *cudaGetErrorName(int code) { return error_name(code); }
const char *cudaGetErrorString(int code) {
    switch (code) {
    case SUCCESS: return "no error";
    case OUT_OF_MEMORY: return "out of memory";
    case NO_DEVICE: return "no CUDA-capable device is detected";
    case INVALID_DEVICE: return "invalid device ordinal";
    case CANNOT_CAPTURE: return "the emulated GPU captures no CUDA graph";
    default: return "invalid argument";
    }
}
int cuGetErrorString(int code, const char **text) { return *text = cudaGetErrorString(code), SUCCESS; }
int cuGetErrorName(int code, const char **text) { return *text = error_name(code), SUCCESS; }
