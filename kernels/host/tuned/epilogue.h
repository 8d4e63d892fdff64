/* The epilogue of a micro-tile that is not stored to C directly: partial vectors, beta, and the fused work.

   Idea       bias and activation, the backward epilogue (derivative and bias gradient) or the SGD update run
              on the tile while it is in the L1 cache.
   Bound by   bytes of C, read and written once. Separate element-wise ops read and write it once more each.
   Run        ./train bench gemm --backends tuned; ./train --backend tuned --engine fused */
#ifndef NAME
#    include "kernels/host/tuned/vector.h"
#endif

INLINE void NAME(forward_row)(enum activation activation, size_t cols, const REAL *restrict bias, STORED *pre,
                              REAL *restrict row) {
#pragma omp simd
    for (size_t j = 0; j < cols; j++) {
        const REAL z = row[j] + bias[j];
        if (pre) pre[j] = STORE(z);
        row[j] = activate(activation, z);
    }
}

/* The slopes in a loop of their own: gcc makes a branch of ReLU's 0 or 1 times a value. */
INLINE void NAME(backward_row)(enum activation activation, size_t cols, const STORED *restrict pre,
                               const STORED *restrict output, REAL *restrict sums, REAL *restrict row) {
    REAL slope[NR > TUNED_NARROW ? NR : TUNED_NARROW]; /* a whole row of a narrow C, or a micro-tile's */
#pragma omp simd
    for (size_t j = 0; j < cols; j++) slope[j] = derivative(activation, LOAD(pre[j]), LOAD(output[j]));
#pragma omp simd
    for (size_t j = 0; j < cols; j++) row[j] = LOAD(STORE(row[j] * slope[j]));
    if (!sums) return;
#pragma omp simd
    for (size_t j = 0; j < cols; j++) sums[j] += row[j];
}

INLINE void NAME(update_row)(size_t cols, const struct tuned_update *update, const REAL *restrict row,
                             REAL *restrict velocity, REAL *restrict weight) {
    const REAL lr = (REAL)update->learning_rate, mu = (REAL)update->momentum,
               decay = (REAL)update->weight_decay;
    if (!velocity) {
#pragma omp simd
        for (size_t j = 0; j < cols; j++)
            weight[j] = SCALAR_FMA(-lr, SCALAR_FMA(decay, weight[j], row[j]), weight[j]);
        return;
    }
#pragma omp simd
    for (size_t j = 0; j < cols; j++) {
        velocity[j] = SCALAR_FMA(mu, velocity[j], SCALAR_FMA(decay, weight[j], row[j]));
        weight[j] = SCALAR_FMA(-lr, velocity[j], weight[j]);
    }
}

/* Inlined with a constant `cols` for full tiles. */
INLINE void NAME(epilogue_rows)(const struct gemm_call *call, const struct tuned_plan *plan, REAL *tile,
                                size_t ld, size_t row, size_t rows, size_t col, size_t cols, REAL beta,
                                bool last) {
    const struct tuned_update *update = plan->update;
    const struct gemm_epilogue *forward = last ? call->epilogue : NULL;
    const struct gemm_backward *backward = last ? call->backward : NULL;
    for (size_t i = 0; i < rows; i++, tile += ld) {
        const size_t at = (row + i) * call->ldc + col;
        STORED *c = (STORED *)call->c + at;
        REAL *sum = (REAL *)(plan->partial_sums ? plan->partial_sums : call->c) + at;
        if (beta != 0)
            for (size_t j = 0; j < cols; j++) tile[j] = SCALAR_FMA(beta, sum[j], tile[j]);
        if (update && last) {
            NAME(update_row)
            (cols, update, tile, update->velocity ? (REAL *)update->velocity + at : NULL,
             (REAL *)call->c + at);
            continue;
        }
        if (forward) {
            const REAL *bias = (const REAL *)forward->bias + col;
            STORED *pre = forward->pre ? (STORED *)forward->pre + at : NULL;
            FOR_ACTIVATION(forward->activation, NAME(forward_row)(A, cols, bias, pre, tile))
        } else if (backward) {
            const STORED *pre = (const STORED *)backward->pre + at,
                         *output = (const STORED *)backward->output + at;
            REAL *sums = backward->bias_grad ? (REAL *)backward->bias_grad + col : NULL;
            FOR_ACTIVATION(backward->activation, NAME(backward_row)(A, cols, pre, output, sums, tile))
        }
        if (!last) {
            for (size_t j = 0; j < cols; j++) sum[j] = tile[j];
        } else if (cols < LANES) { /* compiles to a masked store on AVX-512 */
            for (size_t j = 0; j < LANES; j++)
                if (j < cols) c[j] = STORE(tile[j]);
        } else {
            for (size_t j = 0; j < cols; j++) c[j] = STORE(tile[j]);
        }
    }
}

/* Prefetches the rows that an update reads and writes after the tile is computed. */
INLINE void NAME(prefetch_rows)(const void *matrix, size_t at, size_t ld, size_t rows) {
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < NR; j += 64 / sizeof(REAL))
            __builtin_prefetch((const REAL *)matrix + at + i * ld + j, 1);
}

/* Adds beta * C to the `rows` x `cols` elements of `tile` [..][ld] and stores them at (row, col) of C.
   `last`: the sums over k are complete, and the call's epilogue follows. */
static void NAME(tile_epilogue)(const struct gemm_call *call, const struct tuned_plan *plan, REAL *tile,
                                size_t ld, size_t row, size_t rows, size_t col, size_t cols, REAL beta,
                                bool last) {
    if (cols == NR) {
        NAME(epilogue_rows)(call, plan, tile, ld, row, rows, col, NR, beta, last);
    } else {
        NAME(epilogue_rows)(call, plan, tile, ld, row, rows, col, cols, beta, last);
    }
}
