/* Slot `nearest` of `tuned`: selects the variant for the points. */
#include "kernels/host/tuned/nearest.h"

#include <stdio.h>
#include <string.h>

#include "kernels/host/tuned/tuned.h"

/* The first member of the state of each variant is its table. */
static const struct gemm_nearest *table_of(void *state) {
    return *(const struct gemm_nearest *const *)state;
}

static void *nearest_open(void *context, const struct nearest_shape *shape, char *why, size_t size) {
    const struct tuned_context *tuned = context;
    const struct int8_kernel *kernel = int8_amx.usable() ? &int8_amx : int8_vnni.usable() ? &int8_vnni : NULL;
    const bool wide = strncmp(tuned->isa->name, "avx512", 6) == 0,
               slice = wide && int8_vnni.usable() && shape->precision == NEAREST_EXACT &&
                       shape->features <= SLICE_MOST_FEATURES &&
                       (shape->bytes ? kernel == &int8_vnni && shape->dtype == GEMM_F32
                                     : shape->features > FEW_FEATURES);
    void *state = NULL;
    if (shape->precision == NEAREST_TF32 || shape->precision == NEAREST_BF16) {
        snprintf(why, size, "they need backend cuda-tuned");
        return NULL;
    }
    if (shape->bounds) {
        state = tuned_nearest_pruned(tuned_kernel_for(tuned, GEMM_F32), shape, tuned->threads);
        if (!state) snprintf(why, size, "out of memory");
        return state;
    }
    if (shape->bytes && (!wide || !kernel || shape->dtype != GEMM_F32)) {
        snprintf(why, size, "for pixels it needs AVX-512 VNNI or AMX, and dtype f32");
        return NULL;
    }
    if (shape->bytes && shape->features > INT8_MOST_FEATURES) {
        snprintf(why, size, "for pixels it takes at most %d features", INT8_MOST_FEATURES);
        return NULL;
    }
    if (!shape->bytes && shape->features > FEW_FEATURES && !slice) {
        snprintf(why, size, "for reals of more than %d features it needs AVX-512 VNNI and exact labels",
                 FEW_FEATURES);
        return NULL;
    }
    if (slice) {
        state = tuned_nearest_slice(tuned_kernel_for(tuned, GEMM_F32), shape, tuned->threads);
    } else if (shape->bytes) {
        state = tuned_nearest_int8(kernel, shape, tuned->threads);
    } else {
        const bool wide_reals = shape->dtype == GEMM_F64;
        state =
            tuned_nearest_few(tuned_kernel_for(tuned, GEMM_F32),
                              wide_reals ? tuned_kernel_for(tuned, GEMM_F64) : NULL, shape, tuned->threads);
    }
    if (!state) snprintf(why, size, "out of memory");
    return state;
}

static void nearest_close(void *state) {
    table_of(state)->close(state);
}

static bool nearest_centres(void *state, const struct nearest_centres *centres) {
    return table_of(state)->centres(state, centres);
}

static void nearest_run(void *state, const struct nearest_call *call, struct nearest_counts *counts) {
    table_of(state)->run(state, call, counts);
}

static void nearest_describe(void *state, char *text, size_t size) {
    table_of(state)->describe(state, text, size);
}

const struct gemm_nearest tuned_nearest = {
    .open = nearest_open,
    .close = nearest_close,
    .centres = nearest_centres,
    .run = nearest_run,
    .describe = nearest_describe,
};
