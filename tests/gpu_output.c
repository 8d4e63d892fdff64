#include "tests/gpu_output.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/activation.h"
#include "src/base/rng.h"

static struct values steps(enum gemm_dtype dtype, size_t count, double step, uint32_t substream) {
    struct values values = values_make(dtype, count);
    struct rng rng = rng_open(3, RNG_TEST, substream);
    for (size_t i = 0; i < count; i++) values_set(values, i, step * ((double)rng_below(&rng, 3) - 1));
    return values;
}

struct output_operands output_operands_of(const struct output_shape *shape) {
    const size_t elements = shape->rows * shape->units, weights = shape->units * shape->classes;
    const bool exact = gemm_is_16bit(shape->dtype);
    struct output_operands all = {
        .x = exact ? steps(shape->dtype, elements, 0.5, 1) : values_random(GEMM_F32, elements, 1, 1),
        .w = exact ? steps(shape->dtype, weights, 0.125, 2) : values_random(GEMM_F32, weights, 0.125, 2),
        .bias = steps(GEMM_F32, shape->classes, 0.25, 3)};
    all.read =
        activation_needs_input(shape->activation) ? values_random(shape->dtype, elements, 2, 4) : all.x;
    for (size_t r = 0; r < shape->rows; r++) all.labels[r] = (uint8_t)(r * 7 % shape->classes);
    if (shape->bad_value != 0) values_set(shape->bad_weight ? all.w : all.bias, 3, shape->bad_value);
    if (shape->bad_label) all.labels[shape->rows - 1] = (uint8_t)shape->classes;
    return all;
}

static size_t count_of(const struct output_shape *shape, int result) {
    const size_t elements = shape->rows * shape->units, logits = shape->rows * shape->classes,
                 weights = shape->units * shape->classes;
    const size_t counts[] = {elements, shape->units, weights, shape->classes, 1, logits, logits};
    return counts[result];
}

static enum gemm_dtype dtype_of(const struct output_shape *shape, int result) {
    return result == X_GRAD || result == LOGITS || result == GRAD ? shape->dtype
           : result == LOSS                                       ? GEMM_F64
                                                                  : GEMM_F32;
}

size_t output_bytes(const struct output_shape *shape, int result) {
    return count_of(shape, result) * dtype_size(dtype_of(shape, result));
}

static void *upload(struct compute *compute, const void *values, size_t bytes) {
    struct device *device = &compute->device;
    void *memory = device->driver->alloc(device, bytes);
    assert_non_null(memory);
    device->driver->upload(device, memory, values, bytes);
    return memory;
}

static double batch_of(const struct output_shape *shape) {
    return (double)(shape->rows + 3);
}

/* Gradients of activations are stored times this. */
static double scale_of(const struct output_shape *shape) {
    return shape->dtype == GEMM_F16 ? 1024 * batch_of(shape) : 1;
}

bool output_run(struct compute *compute, const struct output_shape *shape,
                const struct output_operands *operands, struct output_outcome *outcome) {
    struct device *device = &compute->device;
    const size_t size = dtype_size(shape->dtype), elements = shape->rows * shape->units;
    void *const x = upload(compute, operands->x.data, elements * size),
                *const read = upload(compute, operands->read.data, elements * size),
                *const w = upload(compute, operands->w.data, shape->units * shape->classes * size),
                *const bias = upload(compute, operands->bias.data, shape->classes * 4),
                *const labels = upload(compute, operands->labels, sizeof operands->labels);
    void *result[OUTPUT_RESULTS];
    for (int i = 0; i < OUTPUT_RESULTS; i++) {
        outcome->result[i] = values_make(dtype_of(shape, i), count_of(shape, i));
        memset(outcome->result[i].data, 0xff, output_bytes(shape, i));
        result[i] = upload(compute, outcome->result[i].data, output_bytes(shape, i));
    }
    outcome->tally = (struct tally){.images = 5, .batches = 2, .correct = 1, .loss_sum = 1};
    struct tally *const tally = upload(compute, &outcome->tally, sizeof outcome->tally);
    const struct gemm_epilogue add = {
        .bias = bias, .activation = shape->forward, .pre = shape->pre ? result[GRAD] : NULL};
    const struct gemm_backward below = {.activation = shape->activation,
                                        .pre = activation_needs_input(shape->activation) ? read : NULL,
                                        .output = shape->apart ? read : x,
                                        .bias_grad = result[BELOW_GRAD],
                                        .bias_scale = 1 / scale_of(shape)};
    const struct gemm_call logits = {.dtype = shape->dtype,
                                     .op = GEMM_NN,
                                     .m = shape->rows,
                                     .n = shape->classes,
                                     .k = shape->units,
                                     .alpha = 1,
                                     .a = x,
                                     .lda = shape->units,
                                     .b = w,
                                     .ldb = shape->classes,
                                     .c = result[LOGITS],
                                     .ldc = shape->classes,
                                     .epilogue = &add,
                                     .b_complete = shape->early},
                           gradient = {.dtype = shape->dtype,
                                       .c_f32 = gemm_is_16bit(shape->dtype),
                                       .op = GEMM_TN,
                                       .m = shape->units,
                                       .n = shape->classes,
                                       .k = shape->rows,
                                       .alpha = 1 / scale_of(shape),
                                       .a = x,
                                       .lda = shape->units,
                                       .ldb = shape->classes,
                                       .c = result[W_GRAD],
                                       .ldc = shape->classes},
                           input = {.dtype = shape->dtype,
                                    .op = GEMM_NT,
                                    .m = shape->rows,
                                    .n = shape->units,
                                    .k = shape->classes,
                                    .alpha = shape->alpha,
                                    .a = result[GRAD],
                                    .lda = shape->classes,
                                    .b = w,
                                    .ldb = shape->classes,
                                    .c = result[X_GRAD],
                                    .ldc = shape->units,
                                    .backward = &below};
    const struct output_layer layer = {.logits = &logits,
                                       .gradient = &gradient,
                                       .input_gradient = &input,
                                       .bias_grad = result[BIAS_GRAD],
                                       .batch = shape->rows + 3,
                                       .smoothing = shape->smoothing,
                                       .labels = labels,
                                       .loss = shape->uncounted ? NULL : result[LOSS],
                                       .tally = tally,
                                       .counted = !shape->uncounted};
    bool done = false;
    assert_status(compute_output_layer(compute, &layer, &done), STATUS_OK);
    for (int i = 0; i < OUTPUT_RESULTS; i++)
        device->driver->download(device, outcome->result[i].data, result[i], output_bytes(shape, i));
    device->driver->download(device, &outcome->tally, tally, sizeof *tally);
    assert_status(device->driver->synchronize(device), STATUS_OK);
    void *const memory[] = {x, read, w, bias, labels, tally};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) device->driver->free(device, memory[i]);
    for (int i = 0; i < OUTPUT_RESULTS; i++) device->driver->free(device, result[i]);
    return done;
}

static void assert_close(double got, double want, double bound, const char *what, size_t at) {
    if (!(fabs(got - want) <= bound))
        fail_msg("%s %zu is %.9g, not %.9g +- %.3g", what, at, got, want, bound);
}

/* Rounding error of an element of this type, relative; of float32 with a few operations before. */
static double error_of(const struct output_shape *shape) {
    return shape->dtype == GEMM_F32 ? 0x1p-20 : shape->dtype == GEMM_F16 ? 0x1p-11 : 0x1p-8;
}

/* z: the logits of a row, as computed, which are checked. */
static void check_logits(const struct output_shape *shape, const struct output_operands *all,
                         const struct output_outcome *outcome, size_t row, double *z) {
    for (size_t c = 0; c < shape->classes; c++) {
        double sum = values_get(all->bias, c), size = fabs(sum);
        for (size_t u = 0; u < shape->units; u++) {
            const double term =
                values_get(all->x, row * shape->units + u) * values_get(all->w, u * shape->classes + c);
            sum += term;
            size += fabs(term);
        }
        z[c] = values_get(outcome->result[LOGITS], row * shape->classes + c);
        assert_close(z[c], sum, shape->dtype == GEMM_F32 ? 0x1p-22 * size : 0, "logit", c);
    }
}

/* Returns the loss of a row, and its gradient as computed, which is checked. */
static double row_loss(const struct output_shape *shape, const struct output_operands *all,
                       const struct output_outcome *outcome, size_t row, double *grad, bool *correct) {
    const double batch = batch_of(shape) / scale_of(shape);
    double z[16], sum = 0, loss = 0;
    size_t best = 0;
    check_logits(shape, all, outcome, row, z);
    for (size_t c = 0; c < shape->classes; c++)
        if (z[c] > z[best]) best = c;
    for (size_t c = 0; c < shape->classes; c++) sum += exp(z[c] - z[best]);
    for (size_t c = 0; c < shape->classes; c++) {
        const double target =
            (c == all->labels[row] ? 1 - shape->smoothing : 0) + shape->smoothing / (double)shape->classes;
        const double want = (exp(z[c] - z[best]) / sum - target) / batch;
        loss -= target * (z[c] - z[best] - log(sum));
        grad[c] = values_get(outcome->result[GRAD], row * shape->classes + c);
        assert_close(grad[c], want, error_of(shape) * fabs(want) + 1e-6 / batch, "gradient of the logit",
                     row * shape->classes + c);
    }
    *correct = best == all->labels[row];
    return loss;
}

void output_check(const struct output_shape *shape, const struct output_operands *all,
                  const struct output_outcome *outcome) {
    const size_t rows = shape->rows, units = shape->units, classes = shape->classes;
    double *const grad = calloc(rows * 16, sizeof *grad), *const below = calloc(units * 2, sizeof *below),
                  *const w = calloc(units * classes * 2, sizeof *w), loss = 0, bias[16][2] = {{0}};
    /* Sums of what is stored are float32: a few hundred additions, some of them truncated by tensor cores, of
       2^-24 each. What cancels may be off by `least`. */
    const double ulp = error_of(shape), scale = scale_of(shape), least = 1e-9 * scale,
                 of_sum = shape->dtype == GEMM_F32 ? ulp : 0x1p-16;
    size_t hits = 0;
    for (size_t r = 0; r < rows; r++) {
        bool correct;
        loss += row_loss(shape, all, outcome, r, grad + r * 16, &correct);
        hits += correct;
        for (size_t c = 0; c < classes; c++) {
            bias[c][0] += grad[r * 16 + c];
            bias[c][1] += fabs(grad[r * 16 + c]);
        }
        for (size_t u = 0; u < units; u++) {
            const double read = values_get(all->read, r * units + u), x = values_get(all->x, r * units + u);
            double sum = 0, size = 0;
            for (size_t c = 0; c < classes; c++) {
                const double part = grad[r * 16 + c] * values_get(all->w, u * classes + c);
                sum += part;
                size += fabs(part);
                w[(u * classes + c) * 2] += x * grad[r * 16 + c];
                w[(u * classes + c) * 2 + 1] += fabs(x * grad[r * 16 + c]);
            }
            /* in float32 a derivative near zero is a difference of larger numbers */
            const double slope = shape->alpha * derivative(shape->activation, read, read),
                         terms = fabs(slope) + (shape->dtype == GEMM_F32 ? 2 : 0);
            const double stored = values_get(outcome->result[X_GRAD], r * units + u);
            assert_close(stored, slope * sum, 2 * ulp * terms * size + least, "input gradient",
                         r * units + u);
            below[u * 2] += stored;
            below[u * 2 + 1] += fabs(stored);
        }
    }
    for (size_t u = 0; u < units; u++)
        assert_close(scale * values_get(outcome->result[BELOW_GRAD], u), below[u * 2],
                     of_sum * below[u * 2 + 1] + least, "bias gradient of the layer below", u);
    for (size_t i = 0; i < units * classes; i++)
        assert_close(scale * values_get(outcome->result[W_GRAD], i), w[i * 2], of_sum * w[i * 2 + 1] + least,
                     "weight gradient", i);
    for (size_t c = 0; c < classes; c++)
        assert_close(scale * values_get(outcome->result[BIAS_GRAD], c), bias[c][0],
                     of_sum * bias[c][1] + least, "bias gradient", c);
    /* exp of float32, of a few units in the last place */
    assert_close(outcome->tally.loss_sum, 1 + loss, 1e-5 * loss, "loss of image", rows);
    assert_close(values_get(outcome->result[LOSS], 0), loss / (double)rows, 1e-5 * loss / (double)rows,
                 "mean loss", 0);
    assert_int_equal(outcome->tally.correct, 1 + hits);
    assert_int_equal(outcome->tally.images, 5 + rows);
    assert_int_equal(outcome->tally.batches, 3);
    assert_int_equal(outcome->tally.bad_step, 0);
    free(grad);
    free(below);
    free(w);
}

void output_outcome_close(struct output_outcome *outcome) {
    for (int i = 0; i < OUTPUT_RESULTS; i++) free(outcome->result[i].data);
}

void output_operands_close(struct output_operands *all) {
    if (all->read.data != all->x.data) free(all->read.data);
    free(all->x.data);
    free(all->w.data);
    free(all->bias.data);
}
