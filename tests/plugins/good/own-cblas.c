/* Correct: a plug-in around a CBLAS of its own, and itself a CBLAS library. If its calls reach the
   cblas_sgemm of another library, which the program may have loaded, it fails. */
#include "tests/plugins/reference.h"

enum { TRANSPOSED = 112 }; /* of CBLAS */

void cblas_sgemm(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a, int lda,
                 const float *b, int ldb, float beta, float *c, int ldc);
void cblas_dgemm(int order, int ta, int tb, int m, int n, int k, double alpha, const double *a, int lda,
                 const double *b, int ldb, double beta, double *c, int ldc);
void bli_thread_set_num_threads(long threads); /* as in BLIS */
long bli_thread_get_num_threads(void);

static long calls, thread_count = 1;

static void multiply(struct gemm_call call, int ta, int tb, const int *sizes, const int *leading) {
    calls++;
    call.op = ta == TRANSPOSED ? GEMM_TN : tb == TRANSPOSED ? GEMM_NT : GEMM_NN;
    call.m = (size_t)sizes[0], call.n = (size_t)sizes[1], call.k = (size_t)sizes[2];
    call.lda = (size_t)leading[0], call.ldb = (size_t)leading[1], call.ldc = (size_t)leading[2];
    reference_gemm(&call);
}

void cblas_sgemm(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a, int lda,
                 const float *b, int ldb, float beta, float *c, int ldc) {
    (void)order;
    multiply(
        (struct gemm_call){
            .dtype = GEMM_F32, .alpha = (double)alpha, .a = a, .b = b, .beta = (double)beta, .c = c},
        ta, tb, (int[]){m, n, k}, (int[]){lda, ldb, ldc});
}

void cblas_dgemm(int order, int ta, int tb, int m, int n, int k, double alpha, const double *a, int lda,
                 const double *b, int ldb, double beta, double *c, int ldc) {
    (void)order;
    multiply((struct gemm_call){.dtype = GEMM_F64, .alpha = alpha, .a = a, .b = b, .beta = beta, .c = c}, ta,
             tb, (int[]){m, n, k}, (int[]){lda, ldb, ldc});
}

void bli_thread_set_num_threads(long threads) {
    thread_count = threads;
}

long bli_thread_get_num_threads(void) {
    return thread_count;
}

static enum gemm_status gemm(void *context, const struct gemm_call *call) {
    (void)context;
    const long before = calls;
    cblas_sgemm(101, gemm_transposes_a(call->op) ? TRANSPOSED : 111,
                gemm_transposes_b(call->op) ? TRANSPOSED : 111, (int)call->m, (int)call->n, (int)call->k,
                (float)call->alpha, call->a, (int)call->lda, call->b, (int)call->ldb, (float)call->beta,
                call->c, (int)call->ldc);
    return calls == before + 1 ? GEMM_OK : GEMM_FAILED;
}

static const struct gemm_backend backend = {.name = "own-cblas", REFERENCE_SLOTS, .gemm = gemm};
GEMM_PLUGIN(backend);
