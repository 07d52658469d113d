/* What the parts of the emulated GPU share. The declarations are our own: they say what a binary interface needs, no more. */
#ifndef MEMTUNE_EMULATED_H
#define MEMTUNE_EMULATED_H

#include <stddef.h>
#include <stdint.h>

/* The CUDA release that torch was built for: one structure lost fields with release 13. */
#ifndef CUDA_MAJOR
#define CUDA_MAJOR 13
#endif

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100, INVALID_DEVICE = 101, CANNOT_CAPTURE = 900 };

/* Copies and fills up to this size are real, so that host code reads what host code wrote; larger ones would only fill
 * the host's memory. */
#define REAL_BYTES ((size_t)1 << 20)

/* As many as torch knows. */
#define MOST_GPUS 120

struct gpu {
    char name[128];
    size_t total, outside, context; /* outside has one context in it */
    int major, minor, sms, warp, threads_per_sm, blocks_per_sm, registers_per_sm, l2;
    int shared_per_block, shared_per_block_optin, shared_per_sm, shared_reserved;
    int cudnn, nccl, cublas, cuda;
    int gpus; /* of the node, all alike */
};

extern struct gpu gpu;

/* device.c */
int current_device(void);
int is_gpu(int device);
int devices(void);
int gpu_of(int device); /* its number on the node */

/* memory.c */
int fail(int code);
int device_reserve(int device, size_t size);
void device_release(int device, size_t size);
void *address_reserve(size_t size, size_t alignment);
int address_free(void *address);
int is_device(const void *address);
int device_of(const void *address);

/* gpu_memory.c; GPUs by their numbers on the node */
int process_take(int index, size_t size);
void process_give(int index, size_t size);
size_t gpu_free_bytes(int index);
int next_user(int index, int place, int *pid, size_t *used);

/* nvml.c */
enum { UUID_SIZE = 48 };
void uuid_of(int index, char text[UUID_SIZE]);

/* A handle that nobody looks into: each is another number, and none is null. */
void *new_handle(void);

/* work.c */
enum collective { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST, REDUCE, ALL_TO_ALL, SEND, RECEIVE, COLLECTIVES };
void communicate(enum collective kind, size_t size);

#endif
