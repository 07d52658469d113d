/* What was asked of the GPU: matrix products by cuBLAS and cuBLASLt, and the bytes of collectives. */
#include "emulated.h"

#include <stdlib.h>

static uint64_t products, flops;

static int multiply(uint64_t operations, uint64_t m, uint64_t n, uint64_t k, uint64_t batch) {
    __atomic_add_fetch(&products, 1, __ATOMIC_RELAXED);
    __atomic_add_fetch(&flops, operations * m * n * k * batch, __ATOMIC_RELAXED);
    return SUCCESS;
}

/* A complex multiplication and addition are eight operations. What follows the arguments that are read is left out. */
enum { REAL = 2, COMPLEX = 8 };
#define PRODUCT(name, operations) \
    int name(void *handle, int ta, int tb, int m, int n, int k) { \
        return (void)handle, (void)ta, (void)tb, multiply(operations, m, n, k, 1); \
    }
#define BATCHED(name, operations) \
    int name(void *handle, int ta, int tb, int m, int n, int k, void *alpha, void *a, int lda, void *b, int ldb, \
             void *beta, void *c, int ldc, int batch) { \
        (void)handle, (void)ta, (void)tb, (void)alpha, (void)a, (void)lda, (void)b, (void)ldb, (void)beta, (void)c; \
        return (void)ldc, multiply(operations, m, n, k, batch); \
    }
#define STRIDED(name, operations) \
    int name(void *handle, int ta, int tb, int m, int n, int k, void *alpha, void *a, int lda, int64_t step_a, void *b, \
             int ldb, int64_t step_b, void *beta, void *c, int ldc, int64_t step_c, int batch) { \
        (void)handle, (void)ta, (void)tb, (void)alpha, (void)a, (void)lda, (void)step_a, (void)b, (void)ldb; \
        (void)step_b, (void)beta, (void)c, (void)ldc, (void)step_c; \
        return multiply(operations, m, n, k, batch); \
    }
PRODUCT(cublasSgemm_v2, REAL)
PRODUCT(cublasDgemm_v2, REAL)
PRODUCT(cublasCgemm_v2, COMPLEX)
PRODUCT(cublasZgemm_v2, COMPLEX)
PRODUCT(cublasSgemmEx, REAL)
PRODUCT(cublasGemmEx, REAL)
BATCHED(cublasSgemmBatched, REAL)
BATCHED(cublasDgemmBatched, REAL)
BATCHED(cublasCgemmBatched, COMPLEX)
BATCHED(cublasZgemmBatched, COMPLEX)
STRIDED(cublasSgemmStridedBatched, REAL)
STRIDED(cublasDgemmStridedBatched, REAL)
STRIDED(cublasCgemmStridedBatched, COMPLEX)
STRIDED(cublasZgemmStridedBatched, COMPLEX)
int cublasGemmStridedBatchedEx(void *handle, int ta, int tb, int m, int n, int k, void *alpha, void *a, int type_a, int lda,
                               int64_t step_a, void *b, int type_b, int ldb, int64_t step_b, void *beta, void *c,
                               int type_c, int ldc, int64_t step_c, int batch) {
    (void)handle, (void)ta, (void)tb, (void)alpha, (void)a, (void)type_a, (void)lda, (void)step_a, (void)b, (void)type_b;
    (void)ldb, (void)step_b, (void)beta, (void)c, (void)type_c, (void)ldc, (void)step_c;
    return multiply(REAL, m, n, k, batch);
}

/* Of cuBLASLt's layout of a matrix only the size is kept, in the 64 bytes that a caller may have made room for. */
struct layout {
    uint64_t rows, columns;
    int batch;
};
int cublasLtMatrixLayoutInit_internal(struct layout *layout, size_t size, int type, uint64_t rows, uint64_t columns,
                                      int64_t ld) {
    (void)size, (void)type, (void)ld;
    return *layout = (struct layout){rows, columns, 1}, SUCCESS;
}
int cublasLtMatrixLayoutCreate(struct layout **layout, int type, uint64_t rows, uint64_t columns, int64_t ld) {
    *layout = malloc(sizeof **layout);
    return cublasLtMatrixLayoutInit_internal(*layout, sizeof **layout, type, rows, columns, ld);
}
int cublasLtMatrixLayoutDestroy(struct layout *layout) { return free(layout), SUCCESS; }
int cublasLtMatrixLayoutSetAttribute(struct layout *layout, int which, const int *value, size_t size) {
    enum { BATCH_COUNT = 5 };
    if (which == BATCH_COUNT && size == sizeof *value) layout->batch = *value;
    return SUCCESS;
}
int cublasLtMatmul(void *handle, void *operation, void *alpha, void *a, struct layout *of_a, void *b, void *of_b, void *beta,
                   void *c, void *of_c, void *d, struct layout *of_d) {
    (void)handle, (void)operation, (void)alpha, (void)a, (void)b, (void)of_b, (void)beta, (void)c, (void)of_c, (void)d;
    uint64_t inner = of_d->rows ? of_a->rows * of_a->columns / of_d->rows : 0;
    return multiply(REAL, of_d->rows, of_d->columns, inner, of_d->batch);
}
uint64_t emulated_matrix_products(void) { return products; }
uint64_t emulated_matrix_flops(void) { return flops; }

static const char *const names[COLLECTIVES] = {"all-reduce", "all-gather", "reduce-scatter", "broadcast",
                                               "reduce",     "all-to-all", "send",           "receive"};
static uint64_t calls[COLLECTIVES], bytes[COLLECTIVES];
void communicate(enum collective kind, size_t size) {
    __atomic_add_fetch(calls + kind, 1, __ATOMIC_RELAXED);
    __atomic_add_fetch(bytes + kind, size, __ATOMIC_RELAXED);
}
const char *emulated_collective(size_t place, uint64_t *times, uint64_t *size) {
    if (place >= COLLECTIVES) return NULL;
    return *times = calls[place], *size = bytes[place], names[place];
}
