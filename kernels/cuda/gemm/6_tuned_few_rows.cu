/* cuda-tuned, the output layer of a small batch: products with at most 16 classes and few rows.

   Idea       NN  Y = X W      a block has a row of X. Neighbouring threads read neighbouring elements of
                               W: a thread has one column and every hundredth k, of which it requests
                               eleven at once.
              NT  dX = dY W^T  a block has all rows of eight columns, so that it has their whole sums (bias
                               gradient): no block waits for another one.
              Partial sums are added through shared memory, in a fixed order.
   Bound by   latency: launch, one or two round trips to the L2 cache
   Improves   6_tuned_small.cu, whose tiles of 16 x 16 occupy 8 SMs for the logits of 128 rows
   Run        ./train --backend cuda-tuned --layers 784-1024-1024-1024-10 --batch-size 128 */
#include "kernels/cuda/gemm/6_tuned.cuh"

static const size_t FEW = 1024; /* rows */
static const unsigned CLASSES = 16;
static const unsigned NN_THREADS = 1024;
static const int BATCH = 11; /* loads of a thread before the first use */
static const unsigned NT_THREADS = 256, NT_COLUMNS = 8,
                      OWNED = NT_COLUMNS / 2; /* OWNED: columns of a thread */

template <typename T> static bool has_packs(const struct gemm_call *call) {
    const struct gemm_backward *const back = call->backward;
    const auto fit = [&](const void *memory) {
        return packs_fit(memory, call->n, call->ldc, OWNED, sizeof(T));
    };
    return fit(call->c) && (!back || (fit(back->output) && fit(back->pre)));
}

bool few_rows_takes(const struct gemm_call *call) {
    const size_t fewest_terms = 256, most_terms = 4096; /* each block reads all of W */
    if (call->m >= FEW) return false;
    if (call->op == GEMM_NN)
        return call->n <= CLASSES && call->k >= fewest_terms && call->k <= most_terms && !call->backward;
    return call->op == GEMM_NT && !call->epilogue && call->dtype == GEMM_F32 && call->k <= CLASSES &&
           call->beta == 0 && has_packs<float>(call);
}

template <typename T, typename C>
__global__ void __launch_bounds__(NN_THREADS)
    few_rows_kernel(const T *__restrict__ a, size_t lda, const T *__restrict__ b, size_t ldb, size_t k,
                    sink<C> out) {
    typedef real<T> R;
    __shared__ R partial[NN_THREADS];
    const unsigned n = (unsigned)out.n, groups = NN_THREADS / n, group = threadIdx.x / n, j = threadIdx.x % n;
    const size_t row = blockIdx.x;
    R sum = 0;
    for (size_t first = group; group < groups && first < k; first += (size_t)groups * BATCH) {
        R x[BATCH], w[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const size_t p = first + (size_t)i * groups;
            w[i] = p < k ? R(b[p * ldb + j]) : R(0);
            x[i] = p < k ? R(a[row * lda + p]) : R(0);
        }
#pragma unroll
        for (int i = 0; i < BATCH; i++) sum = fma(x[i], w[i], sum);
    }
    partial[threadIdx.x] = sum;
    __syncthreads();

    /* a warp for each element of C */
    const unsigned column = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (column >= n) return;
    R total = 0;
    for (unsigned i = lane; i < groups; i += 32) total += partial[i * n + column];
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) total += __shfl_xor_sync(0xffffffffu, total, offset);
    if (lane == 0) out.store(row, column, total);
}

/* Adds the column sums of all threads: those of a warp, then those of the warps. */
__device__ static void sum_columns(float (&totals)[OWNED], float *column_sums, size_t n) {
    __shared__ float warps[NT_THREADS / 32][NT_COLUMNS];
    const unsigned lane = threadIdx.x % 32;
#pragma unroll
    for (unsigned e = 0; e < OWNED; e++) {
#pragma unroll
        for (int offset = 16; offset > 1; offset /= 2)
            totals[e] += __shfl_xor_sync(0xffffffffu, totals[e], offset);
        if (lane < 2) warps[threadIdx.x / 32][lane * OWNED + e] = totals[e];
    }
    __syncthreads();
    const size_t column = (size_t)blockIdx.x * NT_COLUMNS + threadIdx.x;
    if (threadIdx.x >= NT_COLUMNS || column >= n) return;
    float total = 0;
    for (unsigned warp = 0; warp < NT_THREADS / 32; warp++) total += warps[warp][threadIdx.x];
    column_sums[column] = total;
}

/* A row of dY, and what the derivative reads of its four columns. */
struct row_inputs {
    float x[CLASSES];
    pack<float, OWNED> y, z;

    __device__ row_inputs(const float *a, size_t at, unsigned k, const slope<float> &back, size_t c,
                          bool inside)
        : y(), z() {
#pragma unroll
        for (unsigned p = 0; p < CLASSES; p++) x[p] = p < k ? a[at + p] : 0;
        if (inside && back.on) y = pack_at<OWNED>(back.output + c);
        if (inside && back.pre) z = pack_at<OWNED>(back.pre + c);
    }
};

__global__ void __launch_bounds__(NT_THREADS)
    few_classes_kernel(const float *a, size_t lda, const float *b, size_t ldb, unsigned k, sink<float> out,
                       slope<float> back) {
    __shared__ float w[CLASSES][NT_COLUMNS];
    const unsigned half = threadIdx.x % 2, rows = NT_THREADS / 2;
    const size_t first = (size_t)blockIdx.x * NT_COLUMNS, column = first + half * OWNED;
    const bool inside = column < out.n;
    if (threadIdx.x < CLASSES * NT_COLUMNS) {
        const unsigned p = threadIdx.x % CLASSES, j = threadIdx.x / CLASSES;
        w[p][j] = p < k && first + j < out.n ? b[(first + j) * ldb + p] : 0;
    }
    float totals[OWNED] = {};
    __syncthreads();
    with_activation(
        back.activation, [&]<enum activation A>() {
            for (size_t i = threadIdx.x / 2; i < out.m; i += rows) {
                const size_t at = i * out.ldc + column;
                const row_inputs in(a, i * lda, k, back, at, inside);
                pack<float, OWNED> c = {};
#pragma unroll
                for (unsigned p = 0; p < CLASSES; p++)
#pragma unroll
                    for (unsigned e = 0; e < OWNED; e++)
                        c.value[e] = fma(in.x[p], w[p][half * OWNED + e], c.value[e]);
#pragma unroll
                for (unsigned e = 0; e < OWNED; e++) {
                    c.value[e] *= out.alpha;
                    if (back.on) c.value[e] *= derivative(A, in.z.value[e], in.y.value[e]);
                    totals[e] += inside ? c.value[e] : 0;
                }
                if (inside) pack_at<OWNED>(out.c + at) = c;
            }
        });
    if (back.on) sum_columns(totals, back.column_sums, out.n);
}

void few_rows_gemm(const struct gemm_call *call, cuda_launcher &launcher) {
    if (call->op == GEMM_NT)
        return launch(launcher, "few_classes_kernel", few_classes_kernel,
                      dim3(blocks_for(call->n, NT_COLUMNS)), NT_THREADS, 0, (const float *)call->a, call->lda,
                      (const float *)call->b, call->ldb, (unsigned)call->k, sink<float>(*call),
                      slope<float>(*call));
    with_types(call, [&]<typename T, typename C>() {
        launch(launcher, "few_rows_kernel", few_rows_kernel<T, C>, dim3((unsigned)call->m), NN_THREADS, 0,
               (const T *)call->a, call->lda, (const T *)call->b, call->ldb, call->k, sink<C>(*call));
    });
}
