/* Slot `nearest` of cuda-tuned: selects the variant for the points. */
#include "kernels/cuda/cluster/loop.cuh"
#include "kernels/cuda/gemm/6_tuned.cuh"

static fused_nearest *base_of(void *state) {
    return (fused_nearest *)state;
}

static void *nearest_open(void *opaque, const struct nearest_shape *shape, char *why, size_t size) {
    const tuned_context *context = (const tuned_context *)opaque;
    const fused_nearest base = {.stream = context->stream,
                                .processors = context->processors,
                                .shared_bytes = context->shared_bytes,
                                .major = context->major,
                                .shape = *shape};
    if (shape->bounds) {
        snprintf(why, size, "a GPU prunes nothing");
        return NULL;
    }
    if (shape->bytes && context->major < 9) {
        snprintf(why, size, "for pixels it needs a GPU of compute capability 9.0");
        return NULL;
    }
    const bool rounded = shape->precision == NEAREST_TF32 || shape->precision == NEAREST_BF16;
    if (shape->bytes && rounded) {
        snprintf(why, size, "pixels are multiplied as integers, and exact labels are as fast");
        return NULL;
    }
    if (shape->bytes) return cuda_nearest_pixels(&base, why, size);
    if (!rounded && shape->features <= cuda_nearest_few_features(shape->dtype))
        return cuda_nearest_few(&base, why, size);
    if (shape->precision == NEAREST_F32) {
        snprintf(why, size, "for so many features, the largest scores of the dtype are those of a GEMM");
        return NULL;
    }
    return cuda_nearest_many(&base, why, size);
}

static void nearest_close(void *state) {
    cuda_loop_close(base_of(state)->loop);
    base_of(state)->table->close(state);
}

static bool nearest_centres(void *state, const struct nearest_centres *centres) {
    return base_of(state)->table->centres(state, centres);
}

static void nearest_run(void *state, const struct nearest_call *call, struct nearest_counts *counts) {
    base_of(state)->table->run(state, call, counts);
}

static void nearest_describe(void *state, char *text, size_t size) {
    base_of(state)->table->describe(state, text, size);
}

static const char *nearest_error(void *state) {
    return base_of(state)->fault.message;
}

static size_t nearest_lloyd(void *state, const struct nearest_lloyd *run, struct nearest_iteration *record) {
    fused_nearest *base = base_of(state);
    const size_t done = base->table->lloyd ? base->table->lloyd(state, run, record) : 0;
    if (done) return done;
    if (!base->loop) base->loop = cuda_loop_open(base);
    return base->loop ? cuda_loop_run(base->loop, run, record) : 0;
}

extern "C" const struct gemm_nearest cuda_nearest = {
    nearest_open, nearest_close, nearest_centres, nearest_run, nearest_describe, nearest_error, nearest_lloyd,
};
