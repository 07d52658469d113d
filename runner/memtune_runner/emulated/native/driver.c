/* The driver's own functions: virtual memory for expandable segments, contexts, modules, and how to find them by name. */
#define _GNU_SOURCE
#include "emulated.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#define GRANULARITY ((size_t)2 << 20)

int cuInit(unsigned flags) { return (void)flags, devices() ? SUCCESS : NO_DEVICE; }
int cuDriverGetVersion(int *version) { return *version = gpu.cuda, SUCCESS; }
int cuDeviceGetCount(int *count) { return *count = devices(), SUCCESS; }
int cuDeviceGet(int *device, int ordinal) { return *device = ordinal, is_gpu(ordinal) ? SUCCESS : INVALID_DEVICE; }
int cuCtxGetCurrent(void **context) { return *context = (void *)0x10, SUCCESS; }
int cuCtxSetCurrent(void *context) { return (void)context, SUCCESS; }
int cuCtxGetDevice(int *device) { return *device = current_device(), SUCCESS; }
int cuDevicePrimaryCtxRetain(void **context, int device) { return (void)device, *context = (void *)0x10, SUCCESS; }
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    return (void)device, *flags = 0, *active = 1, SUCCESS;
}
int cuPointerGetAttribute(void *value, int which, uint64_t address) {
    enum { CONTEXT = 1, MEMORY_TYPE = 2, DEVICE_POINTER = 3, HOST_POINTER = 4, ORDINAL = 9 };
    if (which == MEMORY_TYPE || which == ORDINAL) *(int *)value = which == MEMORY_TYPE ? 2 : device_of((void *)address);
    else if (which == CONTEXT || which == DEVICE_POINTER || which == HOST_POINTER)
        *(uint64_t *)value = which == CONTEXT ? 0x10 : address;
    return SUCCESS;
}

/* A physical piece is its size and its GPU: addresses are mapped already when they are reserved. */
struct piece {
    size_t size;
    int device;
};
struct piece_properties {
    int type, handle_types, location_type, device;
};
int cuMemGetAllocationGranularity(size_t *granularity, const void *properties, int option) {
    return (void)properties, (void)option, *granularity = GRANULARITY, SUCCESS;
}
int cuMemAddressReserve(uint64_t *address, size_t size, size_t alignment, uint64_t wanted, uint64_t flags) {
    (void)wanted, (void)flags;
    *address = (uint64_t)address_reserve(size, alignment);
    return *address ? SUCCESS : OUT_OF_MEMORY;
}
int cuMemAddressFree(uint64_t address, size_t size) { return (void)size, address_free((void *)address); }
int cuMemCreate(uint64_t *handle, size_t size, const struct piece_properties *properties, uint64_t flags) {
    (void)flags;
    struct piece *piece = malloc(sizeof *piece);
    if (!piece || device_reserve(properties->device, size)) return free(piece), OUT_OF_MEMORY;
    *piece = (struct piece){size, properties->device};
    *handle = (uint64_t)piece;
    return SUCCESS;
}
int cuMemRelease(uint64_t handle) {
    struct piece *piece = (struct piece *)handle;
    device_release(piece->device, piece->size);
    free(piece);
    return SUCCESS;
}
/* To another process a piece goes as a file, and takes nothing there. */
int cuMemExportToShareableHandle(void *shared, uint64_t handle, int type, uint64_t flags) {
    enum { FILE_DESCRIPTOR = 1 };
    (void)handle, (void)flags;
    if (type != FILE_DESCRIPTOR) return INVALID_VALUE;
    return (*(int *)shared = open("/dev/null", O_RDONLY | O_CLOEXEC)) < 0 ? OUT_OF_MEMORY : SUCCESS;
}
int cuMemImportFromShareableHandle(uint64_t *handle) {
    return (*handle = (uint64_t)calloc(1, sizeof(struct piece))) ? SUCCESS : OUT_OF_MEMORY;
}
int cuMemMap(uint64_t address, size_t size, size_t offset, uint64_t handle, uint64_t flags) {
    return (void)address, (void)size, (void)offset, (void)handle, (void)flags, SUCCESS;
}
int cuMemUnmap(uint64_t address, size_t size) { return (void)address, (void)size, SUCCESS; }
int cuMemSetAccess(uint64_t address, size_t size, const void *access, size_t count) {
    return (void)address, (void)size, (void)access, (void)count, SUCCESS;
}

int cuModuleLoad(void **module) { return *module = new_handle(), SUCCESS; }
int cuModuleLoadData(void **module) { return *module = new_handle(), SUCCESS; }
int cuModuleLoadDataEx(void **module) { return *module = new_handle(), SUCCESS; }
int cuModuleUnload(void) { return SUCCESS; }
int cuModuleGetFunction(void **function) { return *function = new_handle(), SUCCESS; }
int cuFuncSetAttribute(void) { return SUCCESS; }
int cuFuncSetCacheConfig(void) { return SUCCESS; }
int cuCtxGetLimit(size_t *limit) { return *limit = 0, SUCCESS; }
int cuCtxSetLimit(void) { return SUCCESS; }
int cuOccupancyMaxActiveClusters(int *clusters) { return *clusters = 1, SUCCESS; }
int cuTensorMapEncodeTiled(void) { return SUCCESS; }
int cuLinkCreate_v2(unsigned count, void *options, void *values, void **state) {
    return (void)count, (void)options, (void)values, *state = new_handle(), SUCCESS;
}
int cuLinkComplete(void *state, void **image, size_t *size) { return (void)state, *image = "", *size = 1, SUCCESS; }

static int entry_point(const char *name, void **function, int *found) {
    enum { NOT_FOUND = 1 };
    *function = dlsym(RTLD_DEFAULT, name);
    if (found) *found = *function ? SUCCESS : NOT_FOUND;
    return SUCCESS;
}
int cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version, uint64_t flags, int *found) {
    return (void)version, (void)flags, entry_point(name, function, found);
}
int cudaGetDriverEntryPoint(const char *name, void **function, uint64_t flags, int *found) {
    return (void)flags, entry_point(name, function, found);
}
int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *found) {
    (void)version, (void)flags;
    entry_point(name, function, found);
    return *function ? SUCCESS : 500;
}
