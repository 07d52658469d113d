/* Device memory: address space, which gpu_memory.c counts against the size of its GPU, and pinned host memory, which is
 * real. */
#define _GNU_SOURCE
#include "emulated.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE ((size_t)2 << 20)

struct range {
    char *start;
    size_t size;
    int pinned; /* or MANAGED */
    int device;
};

enum { MANAGED = 2 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct range *ranges;
static size_t count, capacity;
static size_t pinned, pinned_peak;
static __thread int last_error;

static size_t round_up(size_t size, size_t unit) { return (size + unit - 1) / unit * unit; }

/* The place of the first range that starts behind an address. */
static size_t place_of(const char *address) {
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (ranges[middle].start <= address) low = middle + 1;
        else high = middle;
    }
    return low;
}

static struct range *find(const void *address) {
    size_t place = place_of(address);
    if (!place) return NULL;
    struct range *range = &ranges[place - 1];
    return (const char *)address < range->start + range->size ? range : NULL;
}

static int add(void *start, size_t size, int is_pinned) {
    if (count == capacity) {
        size_t more = capacity ? 2 * capacity : 256;
        struct range *grown = realloc(ranges, more * sizeof *grown);
        if (!grown) return OUT_OF_MEMORY;
        ranges = grown, capacity = more;
    }
    size_t place = place_of(start);
    memmove(ranges + place + 1, ranges + place, (count - place) * sizeof *ranges);
    ranges[place] = (struct range){start, size, is_pinned, current_device()};
    count++;
    return SUCCESS;
}

static void take_out(struct range *range) {
    size_t place = range - ranges;
    memmove(range, range + 1, (count - place - 1) * sizeof *ranges);
    count--;
}

int fail(int code) { return last_error = code; }

int cudaGetLastError(void) {
    int error = last_error;
    last_error = SUCCESS;
    return error;
}

int cudaPeekAtLastError(void) { return last_error; }

/* Takes memory of a GPU; it has to be given back with the same size. */
int device_reserve(int device, size_t size) {
    return is_gpu(device) ? process_take(gpu_of(device), size) : INVALID_DEVICE;
}

void device_release(int device, size_t size) { process_give(gpu_of(device), size); }

/* Addresses of the device. The kernel gives them pages only where a small copy touches them. */
void *address_reserve(size_t size, size_t alignment) {
    size_t unit = alignment > PAGE ? alignment : PAGE, whole = size + unit;
    char *mapped = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) return NULL;
    /* Huge pages would make 2 MiB of host memory of every number that is copied. */
    madvise(mapped, whole, MADV_NOHUGEPAGE);
    char *start = (char *)round_up((size_t)mapped, unit);
    if (start > mapped) munmap(mapped, start - mapped);
    munmap(start + size, whole - size - (start - mapped));
    pthread_mutex_lock(&lock);
    int code = add(start, size, 0);
    pthread_mutex_unlock(&lock);
    if (code == SUCCESS) return start;
    munmap(start, size);
    return NULL;
}

static int remove_range(void *address, struct range *removed, int is_pinned) {
    pthread_mutex_lock(&lock);
    struct range *range = find(address);
    int found = range && range->start == (char *)address && range->pinned == is_pinned;
    if (found) {
        *removed = *range;
        take_out(range);
    }
    pthread_mutex_unlock(&lock);
    return found ? SUCCESS : INVALID_VALUE;
}

int address_free(void *address) {
    struct range removed;
    int code = remove_range(address, &removed, 0);
    if (code == SUCCESS) munmap(address, removed.size);
    return code;
}

int is_device(const void *address) {
    pthread_mutex_lock(&lock);
    struct range *range = find(address);
    int device = range && !range->pinned;
    pthread_mutex_unlock(&lock);
    return device;
}

int cudaMalloc(void **address, size_t size) {
    *address = NULL;
    if (!size) return SUCCESS;
    size = round_up(size, PAGE);
    if (device_reserve(current_device(), size)) return fail(OUT_OF_MEMORY);
    if ((*address = address_reserve(size, PAGE))) return SUCCESS;
    device_release(current_device(), size);
    return fail(OUT_OF_MEMORY);
}

int cudaFree(void *address) {
    struct range removed;
    if (!address) return SUCCESS;
    int is_of_device = remove_range(address, &removed, 0) == SUCCESS;
    if (!is_of_device && remove_range(address, &removed, MANAGED)) return fail(INVALID_VALUE);
    munmap(address, removed.size);
    if (is_of_device) device_release(removed.device, removed.size);
    return SUCCESS;
}

/* Memory that the driver moves between host and GPU as it is used. It gives way when the GPU is full, so that it is not
 * counted; paged optimizers are made of it. */
int cudaMallocManaged(void **address, size_t size, unsigned flags) {
    (void)flags;
    size = round_up(size ? size : 1, PAGE);
    *address = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (*address == MAP_FAILED) return *address = NULL, fail(OUT_OF_MEMORY);
    pthread_mutex_lock(&lock);
    int code = add(*address, size, MANAGED);
    pthread_mutex_unlock(&lock);
    return code;
}

int cudaMemPrefetchAsync(const void *address, size_t size, int device, void *stream) {
    return (void)address, (void)size, (void)device, (void)stream, SUCCESS;
}

int cudaMallocAsync(void **address, size_t size, void *stream) {
    (void)stream;
    return cudaMalloc(address, size);
}

int cudaFreeAsync(void *address, void *stream) {
    (void)stream;
    return cudaFree(address);
}

int ncclMemAlloc(void **address, size_t size) { return cudaMalloc(address, size); }
int ncclMemFree(void *address) { return cudaFree(address); }

/* Memory of another process, which has taken it: here it is addresses, and nobody knows what is there. */
struct ipc_handle {
    size_t size;
    void *start; /* with the process, so that no two are alike: torch takes what has one handle for one storage */
    pid_t pid;
    char rest[64 - sizeof(size_t) - sizeof(void *) - sizeof(pid_t)];
};
int cudaIpcGetMemHandle(struct ipc_handle *handle, void *address) {
    pthread_mutex_lock(&lock);
    struct range *range = find(address);
    *handle = (struct ipc_handle){range ? range->size : 0, range ? range->start : NULL, getpid(), {0}};
    pthread_mutex_unlock(&lock);
    return handle->size ? SUCCESS : fail(INVALID_VALUE);
}
int cudaIpcOpenMemHandle(void **address, struct ipc_handle handle, unsigned flags) {
    return (void)flags, (*address = address_reserve(handle.size, PAGE)) ? SUCCESS : fail(OUT_OF_MEMORY);
}
int cudaIpcCloseMemHandle(void *address) { return address_free(address); }

int cudaMemGetInfo(size_t *free_bytes, size_t *total) {
    if (!is_gpu(current_device())) return fail(NO_DEVICE);
    *free_bytes = gpu_free_bytes(gpu_of(current_device())), *total = gpu.total;
    return SUCCESS;
}

static int pin(void *start, size_t size) {
    pthread_mutex_lock(&lock);
    int code = add(start, size, 1);
    if (code == SUCCESS && (pinned += size) > pinned_peak) pinned_peak = pinned;
    pthread_mutex_unlock(&lock);
    return code;
}

static int unpin(void *start) {
    struct range removed;
    int code = remove_range(start, &removed, 1);
    if (code) return code;
    pthread_mutex_lock(&lock);
    pinned -= removed.size;
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

int cudaHostAlloc(void **address, size_t size, unsigned flags) {
    (void)flags;
    *address = NULL;
    if (posix_memalign(address, 4096, size ? size : 1)) return fail(OUT_OF_MEMORY);
    return pin(*address, size);
}

int cudaMallocHost(void **address, size_t size) { return cudaHostAlloc(address, size, 0); }

int cudaFreeHost(void *address) {
    if (!address) return SUCCESS;
    if (unpin(address)) return fail(INVALID_VALUE);
    free(address);
    return SUCCESS;
}

int cudaHostRegister(void *address, size_t size, unsigned flags) {
    (void)flags;
    return pin(address, size);
}

int cudaHostUnregister(void *address) { return unpin(address) ? fail(INVALID_VALUE) : SUCCESS; }

int cudaHostGetDevicePointer(void **device, void *host, unsigned flags) {
    (void)flags;
    *device = host;
    return SUCCESS;
}

struct pointer_attributes {
    int type, device;
    void *device_pointer, *host_pointer;
};

/* The GPU that was current when an address was asked for; -1 if it lies nowhere. */
int device_of(const void *address) {
    pthread_mutex_lock(&lock);
    struct range *range = find(address);
    int device = range ? range->device : -1;
    pthread_mutex_unlock(&lock);
    return device;
}

int cudaPointerGetAttributes(struct pointer_attributes *attributes, const void *address) {
    enum { UNREGISTERED, HOST, DEVICE, BOTH };
    pthread_mutex_lock(&lock);
    struct range *range = find(address);
    int type = !range ? UNREGISTERED : range->pinned == MANAGED ? BOTH : range->pinned ? HOST : DEVICE;
    int device = range ? range->device : -1;
    pthread_mutex_unlock(&lock);
    attributes->type = type;
    attributes->device = device;
    attributes->device_pointer = type == UNREGISTERED ? NULL : (void *)address;
    attributes->host_pointer = type == DEVICE ? NULL : (void *)address;
    return SUCCESS;
}

/* What lies in the host's memory may be no number in the type of the copy that is left out: zeros take its place. Whole
 * pages become zero without being there; those that are shared or of a file keep what they have. */
static void clear(char *start, size_t size) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    char *first = (char *)(((uintptr_t)start + page - 1) / page * page), *end = start + size;
    char *last = (char *)((uintptr_t)end / page * page);
    memset(start, 0, (size_t)(first - start));
    memset(last, 0, (size_t)(end - last));
    size_t whole = (size_t)(last - first);
    if (madvise(first, whole, MADV_DONTNEED)) memset(first, 0, whole); /* locked pages */
}

int cudaMemcpy(void *to, const void *from, size_t size, int kind) {
    (void)kind;
    /* From host to host nothing may be left out: pinned memory is the script's own data. */
    if (size <= REAL_BYTES || (!is_device(to) && !is_device(from))) memmove(to, from, size);
    else if (!is_device(to)) clear(to, size);
    return SUCCESS;
}

int cudaMemcpyAsync(void *to, const void *from, size_t size, int kind, void *stream) {
    (void)stream;
    return cudaMemcpy(to, from, size, kind);
}

int cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t size, void *stream) {
    (void)to_device, (void)from_device;
    return cudaMemcpyAsync(to, from, size, 0, stream);
}

int cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                      int kind, void *stream) {
    (void)stream;
    if (width * height > REAL_BYTES && is_device(to)) return SUCCESS;
    int is_left_out = width * height > REAL_BYTES && is_device(from);
    for (size_t row = 0; row < height; row++) {
        if (is_left_out) memset((char *)to + row * to_pitch, 0, width);
        else cudaMemcpy((char *)to + row * to_pitch, (const char *)from + row * from_pitch, width, kind);
    }
    return SUCCESS;
}

int cudaMemset(void *address, int value, size_t size) {
    if (size <= REAL_BYTES || !is_device(address)) memset(address, value, size);
    return SUCCESS;
}

int cudaMemsetAsync(void *address, int value, size_t size, void *stream) {
    (void)stream;
    return cudaMemset(address, value, size);
}

/* For a rehearsal in which memory is lost. */
void emulated_resize(size_t total) {
    pthread_mutex_lock(&lock);
    gpu.total = total;
    pthread_mutex_unlock(&lock);
}

/* What the report asks for. */
size_t emulated_pinned_peak(void) { return pinned_peak; }
