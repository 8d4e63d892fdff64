/* openmp: the loops of `serial`, parallel over tiles of C.

   Idea       one thread computes an element of C, in one loop over k: no reduction, no race, and the same
              bits for any number of threads. The tiles of both dimensions are distributed (collapse).
   Blocking   the rows of a tile share k x TILE_COLS elements of B, 0.8 MB for k = 784 in float32: read from
              memory once a tile, then from the L2 cache.
   Bound by   loads and stores of each core, as `serial`; and the number of tiles: m = 128, n = 10 has 8.
   Improves   kernels/host/gemm/serial.c
   Run        ./train --backend openmp --threads 2 */
#include <stdio.h>
#include <stdlib.h>

#include "kernels/host/gemm/serial.h"

enum { TILE_ROWS = 16, TILE_COLS = 256 };

struct openmp_context {
    int threads;
};

static int openmp_set_threads(void *context, int threads) {
    struct openmp_context *openmp = context;
    openmp->threads = threads;
    return threads;
}

static void *openmp_create(const struct gemm_setup *setup, char *why, size_t size) {
    struct openmp_context *openmp = malloc(sizeof *openmp);
    if (!openmp) {
        snprintf(why, size, "out of memory");
        return NULL;
    }
    openmp->threads = setup->threads;
    return openmp;
}

static size_t smaller(size_t a, size_t b) {
    return a < b ? a : b;
}

static enum gemm_status openmp_gemm(void *context, const struct gemm_call *call) {
    const struct openmp_context *openmp = context;
    const size_t m = call->m, n = call->n;
#pragma omp parallel for collapse(2) schedule(static) num_threads(openmp->threads)
    for (size_t row = 0; row < m; row += TILE_ROWS)
        for (size_t col = 0; col < n; col += TILE_COLS)
            gemm_reference_block(call, row, smaller(row + TILE_ROWS, m), col, smaller(col + TILE_COLS, n));
    return GEMM_OK;
}

static enum gemm_status openmp_gemm_batch(void *context, const struct gemm_call *call, size_t count,
                                          const struct gemm_strides *strides) {
    const struct openmp_context *openmp = context;
    const size_t m = call->m, n = call->n;
#pragma omp parallel for collapse(3) schedule(static) num_threads(openmp->threads)
    for (size_t i = 0; i < count; i++)
        for (size_t row = 0; row < m; row += TILE_ROWS)
            for (size_t col = 0; col < n; col += TILE_COLS) {
                const struct gemm_call item = gemm_batch_item(call, strides, i);
                gemm_reference_block(&item, row, smaller(row + TILE_ROWS, m), col,
                                     smaller(col + TILE_COLS, n));
            }
    return GEMM_OK;
}

const struct gemm_backend gemm_openmp = {
    .name = "openmp",
    .summary = "the same loops, parallel over tiles of C; same bits for any thread count",
    .device = GEMM_ON_HOST,
    .supports = gemm_reference_supports,
    .gemm = openmp_gemm,
    .create = openmp_create,
    .destroy = free,
    .set_threads = openmp_set_threads,
    .gemm_batch = openmp_gemm_batch,
};
