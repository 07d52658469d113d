/* cuBLAS, cuBLASLt, cuDNN, NCCL and NVRTC, as far as somebody reads what they answer. */
#define _GNU_SOURCE
#include "emulated.h"

#include <stdlib.h>
#include <string.h>

int cudaMemcpy(void *to, const void *from, size_t size, int kind);

int cublasCreate_v2(void **handle) { return *handle = new_handle(), SUCCESS; }
int cublasGetPointerMode_v2(void *handle, int *mode) { return (void)handle, *mode = 0, SUCCESS; }
int cublasGetMathMode(void *handle, int *mode) { return (void)handle, *mode = 0, SUCCESS; }
int cublasGetVersion_v2(void *handle, int *version) { return (void)handle, *version = gpu.cublas, SUCCESS; }
size_t cublasLtGetVersion(void) { return gpu.cublas; }
int cublasLtCreate(void **handle) { return *handle = new_handle(), SUCCESS; }
int cublasLtMatmulDescCreate(void **description) { return *description = new_handle(), SUCCESS; }
/* torch has no use for these three, bitsandbytes is linked with them. */
int cublasLtMatrixTransformDescCreate(void **description) { return *description = new_handle(), SUCCESS; }
int cublasLtMatrixTransformDescDestroy(void *description) { return (void)description, SUCCESS; }
int cublasLtMatrixTransform(void) { return SUCCESS; }
int cublasLtMatmulPreferenceCreate(void **preference) { return *preference = new_handle(), SUCCESS; }

struct heuristic {
    uint64_t algorithm[8];
    size_t workspace;
    int status;
    float waves;
    int reserved[4];
};
/* One algorithm that needs no workspace: torch has allocated its own before it asks. */
int cublasLtMatmulAlgoGetHeuristic(void *handle, void *operation, void *a, void *b, void *c, void *d, void *preference,
                                   int wanted, struct heuristic *results, int *found) {
    (void)handle, (void)operation, (void)a, (void)b, (void)c, (void)d, (void)preference;
    *found = wanted > 0;
    if (*found) memset(results, 0, sizeof *results), results->waves = 1;
    return SUCCESS;
}

int cudnnCreate(void **handle) { return *handle = new_handle(), SUCCESS; }
int cudnnGetStream(void *handle, void **stream) { return (void)handle, *stream = NULL, SUCCESS; }
size_t cudnnGetVersion(void) { return gpu.cudnn; }
int cudnnGetProperty(int part, int *value) {
    enum { MAJOR, MINOR };
    *value = part == MAJOR ? gpu.cudnn / 10000 : part == MINOR ? gpu.cudnn / 100 % 100 : gpu.cudnn % 100;
    return SUCCESS;
}
size_t cudnnGetCudartVersion(void) { return gpu.cuda; }
const char *cudnnGetErrorString(int status) { return status ? "CUDNN_STATUS_NOT_SUPPORTED" : "CUDNN_STATUS_SUCCESS"; }
void cudnnGetLastErrorString(char *text, size_t size) { strncpy(text, "an emulated cuDNN has no engine for this", size); }

/* cuDNN's graphs: whatever is asked for, there is one engine, number 0, without notes, choices or a workspace. */
int cudnnBackendCreateDescriptor(int type, void **descriptor) { return (void)type, *descriptor = new_handle(), SUCCESS; }
int cudnnBackendGetAttribute(void *descriptor, int name, int type, int64_t wanted, int64_t *count, void *values) {
    enum { INT64 = 3, DESCRIPTOR = 15, INT32 = 23, KNOB_CHOICES = 302 };
    (void)descriptor;
    if (type == INT64 && values && wanted > 0) *(int64_t *)values = 0;
    if (type == INT32 && values && wanted > 0) *(int32_t *)values = 0;
    if (count) *count = name != KNOB_CHOICES && (type == INT64 || type == INT32 || type == DESCRIPTOR);
    return SUCCESS;
}

/* Batch norm outside of graphs: no workspace either, and nothing that is kept for the backward pass beside the statistics. */
int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(void *handle, int mode, int operations, void *x, void *z,
                                                             void *y, void *scale, void *activation, size_t *size) {
    (void)handle, (void)mode, (void)operations, (void)x, (void)z, (void)y, (void)scale, (void)activation;
    return *size = 0, SUCCESS;
}
int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(void *handle, int mode, int operations, void *activation,
                                                         void *x, size_t *size) {
    (void)handle, (void)mode, (void)operations, (void)activation, (void)x;
    return *size = 0, SUCCESS;
}
int cudnnGetBatchNormalizationBackwardExWorkspaceSize(void *handle, int mode, int operations, void *x, void *y,
                                                      void *dy, void *dz, void *dx, void *scale, void *activation,
                                                      size_t *size) {
    (void)handle, (void)mode, (void)operations, (void)x, (void)y, (void)dy, (void)dz, (void)dx, (void)scale;
    return (void)activation, *size = 0, SUCCESS;
}

/* CTC loss: no workspace. */
int cudnnGetCTCLossWorkspaceSize(void *handle, void *scores, void *gradients, int *labels, int *label_lengths, int *lengths,
                                 int algorithm, void *loss, size_t *size) {
    (void)handle, (void)scores, (void)gradients, (void)labels, (void)label_lengths, (void)lengths, (void)algorithm;
    return (void)loss, *size = 0, SUCCESS;
}
int cudnnGetCTCLossWorkspaceSize_v8(void *handle, int algorithm, void *loss, void *scores, void *gradients, size_t *size) {
    return (void)handle, (void)algorithm, (void)loss, (void)scores, (void)gradients, *size = 0, SUCCESS;
}

/* NCCL: every peer is taken to hold what this rank holds, and small messages are copied. */
struct communicator {
    int rank, ranks;
};
struct unique_id {
    char bytes[128];
};

static int join(void **communicator, int rank, int ranks) {
    struct communicator *made = malloc(sizeof *made);
    *made = (struct communicator){rank, ranks};
    *communicator = made;
    return SUCCESS;
}
int ncclGetVersion(int *version) { return *version = gpu.nccl, SUCCESS; }
int ncclGetUniqueId(struct unique_id *id) { return memset(id, 1, sizeof *id), SUCCESS; }
int ncclCommInitRank(void **made, int ranks, struct unique_id id, int rank) { return (void)id, join(made, rank, ranks); }
/* Of one process on several GPUs. */
int ncclCommInitAll(void **made, int ranks, const int *devices) {
    (void)devices;
    for (int rank = 0; rank < ranks; rank++) join(made + rank, rank, ranks);
    return SUCCESS;
}
int ncclCommInitRankConfig(void **made, int ranks, struct unique_id id, int rank, void *config) {
    return (void)id, (void)config, join(made, rank, ranks);
}
int ncclCommInitRankScalable(void **made, int ranks, int rank, int ids, void *id, void *config) {
    return (void)ids, (void)id, (void)config, join(made, rank, ranks);
}
int ncclCommSplit(struct communicator *whole, int colour, int key, void **made, void *config) {
    return (void)colour, (void)key, (void)config, join(made, whole->rank, whole->ranks);
}
int ncclCommDestroy(void *communicator) { return free(communicator), SUCCESS; }
int ncclCommAbort(void *communicator) { return free(communicator), SUCCESS; }
int ncclCommFinalize(void *communicator) { return (void)communicator, SUCCESS; }
int ncclCommCount(struct communicator *communicator, int *ranks) { return *ranks = communicator->ranks, SUCCESS; }
int ncclCommUserRank(struct communicator *communicator, int *rank) { return *rank = communicator->rank, SUCCESS; }
int ncclCommGetAsyncError(void *communicator, int *error) { return (void)communicator, *error = SUCCESS, SUCCESS; }
int ncclCommRegister(void *communicator, void *buffer, size_t size, void **handle) {
    return (void)communicator, (void)buffer, (void)size, *handle = new_handle(), SUCCESS;
}
const char *ncclGetErrorString(int code) { return (void)code, "no error"; }
const char *ncclGetLastError(void *communicator) { return (void)communicator, ""; }

static size_t element(int type) {
    enum { INT8, UINT8, INT32, UINT32, INT64, UINT64, FLOAT16, FLOAT32, FLOAT64, BFLOAT16, FLOAT8, FLOAT8_WIDE };
    switch (type) {
    case INT8: case UINT8: case FLOAT8: case FLOAT8_WIDE: return 1;
    case FLOAT16: case BFLOAT16: return 2;
    case INT64: case UINT64: case FLOAT64: return 8;
    default: return 4;
    }
}
static int pass_on(const void *from, void *to, size_t elements, int type) {
    return from == to ? SUCCESS : cudaMemcpy(to, from, elements * element(type), 0);
}
static int spread(const void *from, void *to, size_t elements, int type, struct communicator *communicator) {
    size_t size = elements * element(type);
    for (int rank = 0; rank < communicator->ranks && size * communicator->ranks <= REAL_BYTES; rank++)
        cudaMemcpy((char *)to + rank * size, from, size, 0);
    return SUCCESS;
}
/* How this thread's last message is reduced, which torch's operators hide from Python; -1 if it was asked for before. */
static __thread int reduction = -1;
int emulated_reduction(void) {
    int last = reduction;
    return reduction = -1, last;
}
int ncclAllReduce(const void *from, void *to, size_t elements, int type, int operation) {
    reduction = operation;
    return communicate(ALL_REDUCE, elements * element(type)), pass_on(from, to, elements, type);
}
/* Only the root gets the result; the others may have no place for it. */
int ncclReduce(const void *from, void *to, size_t elements, int type, int operation, int root,
               struct communicator *communicator) {
    reduction = operation;
    communicate(REDUCE, elements * element(type));
    return communicator->rank == root ? pass_on(from, to, elements, type) : SUCCESS;
}
int ncclBroadcast(const void *from, void *to, size_t elements, int type) {
    return communicate(BROADCAST, elements * element(type)), pass_on(from, to, elements, type);
}
int ncclBcast(void *buffer, size_t elements, int type) {
    return (void)buffer, communicate(BROADCAST, elements * element(type)), SUCCESS;
}
int ncclAllGather(const void *from, void *to, size_t elements, int type, struct communicator *communicator) {
    communicate(ALL_GATHER, elements * element(type) * communicator->ranks);
    return spread(from, to, elements, type, communicator);
}
int ncclReduceScatter(const void *from, void *to, size_t elements, int type, int operation,
                      struct communicator *communicator) {
    reduction = operation;
    communicate(REDUCE_SCATTER, elements * element(type) * communicator->ranks);
    return pass_on((const char *)from + communicator->rank * elements * element(type), to, elements, type);
}
int ncclAlltoAll(const void *from, void *to, size_t elements, int type, struct communicator *communicator) {
    communicate(ALL_TO_ALL, elements * element(type) * communicator->ranks);
    return pass_on(from, to, elements * communicator->ranks, type);
}
int ncclSend(const void *from, size_t elements, int type) {
    return (void)from, communicate(SEND, elements * element(type)), SUCCESS;
}
int ncclRecv(void *to, size_t elements, int type) {
    return (void)to, communicate(RECEIVE, elements * element(type)), SUCCESS;
}

/* NVRTC: a program is compiled to nothing, under the name that it was asked for. */
int nvrtcVersion(int *major, int *minor) { return *major = gpu.cuda / 1000, *minor = gpu.cuda % 1000 / 10, SUCCESS; }
int nvrtcCreateProgram(void **program) { return *program = new_handle(), SUCCESS; }
int nvrtcGetLoweredName(void *program, const char *name, const char **lowered) {
    return (void)program, *lowered = name, SUCCESS;
}
static int one(size_t *size) { return *size = 1, SUCCESS; }
int nvrtcGetProgramLogSize(void *program, size_t *size) { return (void)program, one(size); }
int nvrtcGetPTXSize(void *program, size_t *size) { return (void)program, one(size); }
int nvrtcGetCUBINSize(void *program, size_t *size) { return (void)program, one(size); }
static int nothing(char *text) { return *text = 0, SUCCESS; }
int nvrtcGetProgramLog(void *program, char *text) { return (void)program, nothing(text); }
int nvrtcGetPTX(void *program, char *text) { return (void)program, nothing(text); }
int nvrtcGetCUBIN(void *program, char *text) { return (void)program, nothing(text); }
