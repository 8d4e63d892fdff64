/* cuda-tuned, the weight gradient of the output layer of a small batch, dW = X^T dY with at most 16 columns.
   It may update the weights itself: then dW is never stored.

   Idea       a block has 32 units, a lane each, and the warps split the rows of the batch. A thread requests
              its elements of X, and the weights that it updates, before the first barrier.
   Bound by   latency: launch, a round trip to the L2 cache, two barriers
   Improves   6_tuned_small.cu with update.cu
   Run        ./train --backend cuda-tuned --layers 784-1024-1024-1024-10 --batch-size 128 */
#include "kernels/cuda/gemm/6_tuned.cuh"
#include "kernels/cuda/ops/update_rule.cuh"

static const unsigned CLASSES = 16, UNITS = 32, WARPS = 8, THREADS = 32 * WARPS;
static const unsigned ROWS = 128, OWN_ROWS = ROWS / WARPS;    /* of a chunk of the batch */
static const unsigned MOST_OWNED = UNITS * CLASSES / THREADS; /* elements of dW that a thread finishes */

bool few_rows_tn_takes(const struct gemm_call *call) {
    const size_t few = 1024, most = (size_t)1 << 24;
    return call->op == GEMM_TN && call->dtype == GEMM_F32 && call->n <= CLASSES && call->k < few &&
           call->m <= most && !call->epilogue && !call->backward;
}

bool few_rows_tn_updates(const struct gemm_call *call, const struct weight_update *update) {
    const struct update &rule = update->rule;
    return few_rows_tn_takes(call) && call->beta == 0 && rule.method != UPDATE_NONE && !rule.clip &&
           !rule.average && !rule.rounded;
}

/* What a launch updates, in place of storing C. */
struct output_weights {
    float *array[3]; /* weights and moments, with ldc; the moments may be NULL */
    update_rule<float> rule;
    const struct step_scalars *step;
    const struct tally *guard;
};

/* An element of C, with what an update reads of it. */
struct owned {
    size_t unit, column, at;
    bool inside;
    float of[3];

    __device__ owned(unsigned i, const sink<float> &out, const output_weights &weights) : of() {
        const unsigned element = threadIdx.x + i * THREADS, n = (unsigned)out.n;
        unit = (size_t)blockIdx.x * UNITS + element / n;
        column = element % n;
        at = unit * out.ldc + column;
        inside = element < UNITS * n && unit < out.m;
#pragma unroll
        for (unsigned array = 0; array < 3; array++)
            if (inside && weights.array[array]) of[array] = weights.array[array][at];
    }
};

template <enum update_method METHOD>
__global__ void __launch_bounds__(THREADS)
    few_rows_tn_kernel(const float *__restrict__ a, size_t lda, const float *__restrict__ b, size_t ldb,
                       unsigned k, sink<float> out, output_weights weights) {
    __shared__ float dy[ROWS][CLASSES], partial[WARPS][UNITS][CLASSES + 1];
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, n = (unsigned)out.n;
    const size_t unit = (size_t)blockIdx.x * UNITS + lane;
    float sums[CLASSES] = {};
    const owned first(0, out, weights), second(1, out, weights);
    update_rates<float> rates = {};
    bool bad = false;
    if (METHOD != UPDATE_NONE) rates = update_rates<float>(METHOD, weights.rule, weights.step);
    if (METHOD != UPDATE_NONE) bad = weights.guard->bad_step;
    for (unsigned row = 0; row < k; row += ROWS) {
        float x[OWN_ROWS];
#pragma unroll
        for (unsigned i = 0; i < OWN_ROWS; i++) {
            const unsigned r = row + warp + i * WARPS;
            x[i] = r < k && unit < out.m ? a[r * lda + unit] : 0;
        }
        if (row) __syncthreads(); /* all have read the chunk before */
        for (unsigned e = threadIdx.x; e < ROWS * CLASSES; e += THREADS) {
            const unsigned r = row + e / CLASSES, j = e % CLASSES;
            dy[e / CLASSES][j] = r < k && j < n ? b[r * ldb + j] : 0;
        }
        __syncthreads();
#pragma unroll
        for (unsigned i = 0; i < OWN_ROWS; i++)
#pragma unroll
            for (unsigned j = 0; j < CLASSES; j++) sums[j] = fma(x[i], dy[warp + i * WARPS][j], sums[j]);
    }
#pragma unroll
    for (unsigned j = 0; j < CLASSES; j++) partial[warp][lane][j] = sums[j];
    __syncthreads();
    if (bad) return;
    const auto finish = [&](owned one) {
        if (!one.inside) return;
        float total = 0;
#pragma unroll
        for (unsigned w = 0; w < WARPS; w++) total += partial[w][one.unit % UNITS][one.column];
        if (METHOD == UPDATE_NONE) return out.store(one.unit, one.column, total);
        update_parameter<METHOD>(weights.rule, rates, out.alpha * total, one.of[0], one.of[1], one.of[2]);
#pragma unroll
        for (unsigned array = 0; array < 3; array++)
            if (weights.array[array]) weights.array[array][one.at] = one.of[array];
    };
    finish(first);
    finish(second);
}
static_assert(MOST_OWNED == 2);

typedef void kernel(const float *, size_t, const float *, size_t, unsigned, sink<float>, output_weights);

static kernel *kernel_of(enum update_method method) {
    return method == UPDATE_SGD     ? few_rows_tn_kernel<UPDATE_SGD>
           : method == UPDATE_ADAM  ? few_rows_tn_kernel<UPDATE_ADAM>
           : method == UPDATE_ADAMW ? few_rows_tn_kernel<UPDATE_ADAMW>
                                    : few_rows_tn_kernel<UPDATE_NONE>;
}

void few_rows_tn_gemm(const struct gemm_call *call, const struct weight_update *update,
                      cuda_launcher &launcher) {
    const struct update none = {.method = UPDATE_NONE};
    const struct update &rule = update ? update->rule : none;
    const output_weights weights = {
        .array = {(float *)rule.weights, (float *)rule.moment1, (float *)rule.moment2},
        .rule = update_rule<float>(rule),
        .step = update ? update->step : NULL,
        .guard = update ? update->guard : NULL};
    launch(launcher, "few_rows_tn_kernel", kernel_of(rule.method), dim3(blocks_for(call->m, UNITS)), THREADS,
           0, (const float *)call->a, call->lda, (const float *)call->b, call->ldb, (unsigned)call->k,
           sink<float>(*call), weights);
}
