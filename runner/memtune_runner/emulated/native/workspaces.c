/* The workspaces of cuSOLVER, cuSPARSE and cuFFT. NVIDIA does not say how large they are: each is taken to be as large as
 * the matrix that is factored, the product, or what is transformed. */
#include "emulated.h"

#pragma GCC diagnostic ignored "-Wunused-parameter"

/* The last arguments are declared; the size is in elements, or in bytes. */
#define ASKED(name, wanted, ...) \
    int name(void *handle, __VA_ARGS__) { return *size = wanted, SUCCESS; }
#define MATRIX void *a, int lda
#define FACTORS MATRIX, void *s, void *u, int ldu, void *v, int ldv
#define OF_ANY(T) \
    ASKED(cusolverDn##T##geqrf_bufferSize, m *n, int m, int n, MATRIX, int *size) \
    ASKED(cusolverDn##T##getrf_bufferSize, m *n, int m, int n, MATRIX, int *size) \
    ASKED(cusolverDn##T##potrf_bufferSize, n *n, int uplo, int n, MATRIX, int *size) \
    ASKED(cusolverDn##T##sytrf_bufferSize, n *n, int n, MATRIX, int *size) \
    ASKED(cusolverDn##T##gesvd_bufferSize, m *n, int m, int n, int *size) \
    ASKED(cusolverDn##T##gesvdj_bufferSize, m *n, int job, int thin, int m, int n, FACTORS, int *size) \
    ASKED(cusolverDn##T##gesvdjBatched_bufferSize, m *n *batch, int job, int m, int n, FACTORS, int *size, \
          void *parameters, int batch) \
    ASKED(cusolverDn##T##gesvdaStridedBatched_bufferSize, m *n *batch, int job, int rank, int m, int n, MATRIX, \
          int64_t step_a, void *s, int64_t step_s, void *u, int ldu, int64_t step_u, void *v, int ldv, int64_t step_v, \
          int *size, int batch)
#define OF_REAL_OR_COMPLEX(T, symmetric, generates, multiplies) \
    OF_ANY(T) \
    ASKED(cusolverDn##T##symmetric##evd_bufferSize, n *n, int job, int uplo, int n, MATRIX, void *w, int *size) \
    ASKED(cusolverDn##T##symmetric##evjBatched_bufferSize, n *n *batch, int job, int uplo, int n, MATRIX, void *w, \
          int *size, void *parameters, int batch) \
    ASKED(cusolverDn##T##generates##_bufferSize, m *n, int m, int n, int k, MATRIX, void *tau, int *size) \
    ASKED(cusolverDn##T##multiplies##_bufferSize, m *n, int side, int transposed, int m, int n, int k, MATRIX, \
          void *tau, void *c, int ldc, int *size)
OF_REAL_OR_COMPLEX(S, sy, orgqr, ormqr)
OF_REAL_OR_COMPLEX(D, sy, orgqr, ormqr)
OF_REAL_OR_COMPLEX(C, he, ungqr, unmqr)
OF_REAL_OR_COMPLEX(Z, he, ungqr, unmqr)

/* Of real numbers in single, double and half precision, of bytes, and of complex numbers. */
static const size_t widths[] = {4, 8, 2, 1, 8, 16, 4};
/* Bytes of the GPU, and of the host. */
#define ASKED_BYTES(name, elements, ...) \
    int name(void *handle, __VA_ARGS__) { return *size = (elements) * widths[type], *host = 0, SUCCESS; }
#define ANY_MATRIX int type, void *a, int64_t lda
#define BYTES size_t *size, size_t *host
ASKED_BYTES(cusolverDnXgeqrf_bufferSize, m *n, void *parameters, int64_t m, int64_t n, ANY_MATRIX, int type_tau, void *tau,
            int computed, BYTES)
ASKED_BYTES(cusolverDnXpotrf_bufferSize, n *n, void *parameters, int uplo, int64_t n, ANY_MATRIX, int computed, BYTES)
ASKED_BYTES(cusolverDnXsyevd_bufferSize, n *n, void *parameters, int job, int uplo, int64_t n, ANY_MATRIX, int type_w,
            void *w, int computed, BYTES)
ASKED_BYTES(cusolverDnXsyevBatched_bufferSize, n *n *batch, void *parameters, int job, int uplo, int64_t n, ANY_MATRIX,
            int type_w, void *w, int computed, BYTES, int64_t batch)
ASKED_BYTES(cusolverDnXgeev_bufferSize, n *n, void *parameters, int left, int right, int64_t n, ANY_MATRIX, int type_w,
            void *w, int type_l, void *l, int64_t ldl, int type_r, void *r, int64_t ldr, int computed, BYTES)
ASKED_BYTES(cusolverDnXsytrs_bufferSize, n *right_sides, int uplo, int64_t n, int64_t right_sides, ANY_MATRIX,
            void *pivots, int type_b, void *b, int64_t ldb, BYTES)

/* Of cuSPARSE's matrices and vectors nothing is kept, so that nothing is known of a product's size. */
ASKED(cusparseSpMM_bufferSize, 0, int op_a, int op_b, void *alpha, void *a, void *b, void *beta, void *c, int type,
      int algorithm, size_t *size)
ASKED(cusparseSDDMM_bufferSize, 0, int op_a, int op_b, void *alpha, void *a, void *b, void *beta, void *c, int type,
      int algorithm, size_t *size)
ASKED(cusparseSpMV_bufferSize, 0, int op, void *alpha, void *a, void *x, void *beta, void *y, int type, int algorithm,
      size_t *size)
ASKED(cusparseSpSV_bufferSize, 0, int op, void *alpha, void *a, void *x, void *y, int type, int algorithm, void *description,
      size_t *size)
ASKED(cusparseSpSM_bufferSize, 0, int op_a, int op_b, void *alpha, void *a, void *b, void *c, int type, int algorithm,
      void *description, size_t *size)
ASKED(cusparseXcoosort_bufferSizeExt, (size_t)count * 8, int m, int n, int count, void *rows, void *columns, size_t *size)
ASKED(cusparseXcsrsort_bufferSizeExt, (size_t)count * 8, int m, int n, int count, void *rows, void *columns, size_t *size)

int cufftXtMakePlanMany(int plan, int dimensions, long long *sizes, void *embedded, long long step, long long distance,
                        int type, void *embedded_out, long long step_out, long long distance_out, int type_out,
                        long long batch, size_t *size, int computed) {
    *size = batch * widths[type > type_out ? type : type_out];
    for (int dimension = 0; dimension < dimensions; dimension++) *size *= sizes[dimension];
    return SUCCESS;
}
