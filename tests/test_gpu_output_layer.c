/* The output layer of a training step in one kernel (output_layer in kernels/gemm.h): against sums in double,
   the same bits every time. */
#include "tests/gpu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/activation.h"
#include "kernels/ops.h"
#include "src/base/rng.h"
#include "tests/values.h"

struct shape {
    size_t rows, units, classes;
    enum activation activation;
    double smoothing, alpha;          /* alpha: of the input gradient */
    bool bad_label, early, uncounted; /* early: b_complete is set; uncounted: without the loss, too */
};

/* Operands on the host. X and W are small multiples of powers of 2, so that logits are exact. */
struct operands {
    struct values x, w, bias, read;
    uint8_t labels[128];
};

enum { X_GRAD, BELOW_GRAD, W_GRAD, BIAS_GRAD, LOSS, LOGITS, GRAD, RESULTS }; /* tally: apart */

struct outcome {
    struct values result[RESULTS];
    struct tally tally;
};

static struct values steps(enum gemm_dtype dtype, size_t count, double step, uint32_t substream) {
    struct values values = values_make(dtype, count);
    struct rng rng = rng_open(3, RNG_TEST, substream);
    for (size_t i = 0; i < count; i++) values_set(values, i, step * ((double)rng_below(&rng, 3) - 1));
    return values;
}

static struct operands operands_of(const struct shape *shape) {
    struct operands all = {.x = steps(GEMM_BF16, shape->rows * shape->units, 0.5, 1),
                           .w = steps(GEMM_BF16, shape->units * shape->classes, 0.125, 2),
                           .bias = steps(GEMM_F32, shape->classes, 0.25, 3)};
    all.read = activation_needs_input(shape->activation)
                   ? values_random(GEMM_BF16, shape->rows * shape->units, 2, 4)
                   : all.x;
    for (size_t r = 0; r < shape->rows; r++) all.labels[r] = (uint8_t)(r * 7 % shape->classes);
    if (shape->bad_label) all.labels[shape->rows - 1] = (uint8_t)shape->classes;
    return all;
}

static size_t count_of(const struct shape *shape, int result) {
    const size_t counts[] = {shape->rows * shape->units,
                             shape->units,
                             shape->units * shape->classes,
                             shape->classes,
                             1,
                             shape->rows * shape->classes,
                             shape->rows * shape->classes};
    return counts[result];
}

static enum gemm_dtype dtype_of(int result) {
    return result == X_GRAD || result == LOGITS || result == GRAD ? GEMM_BF16
           : result == LOSS                                       ? GEMM_F64
                                                                  : GEMM_F32;
}

static void *upload(struct compute *compute, const void *values, size_t bytes) {
    struct device *device = &compute->device;
    void *memory = device->driver->alloc(device, bytes);
    assert_non_null(memory);
    device->driver->upload(device, memory, values, bytes);
    return memory;
}

/* Runs the layer; results are poisoned before. False: the backend does not take it. */
static bool run_layer(struct compute *compute, const struct shape *shape, const struct operands *operands,
                      struct outcome *outcome) {
    struct device *device = &compute->device;
    const size_t elements = shape->rows * shape->units, weights = shape->units * shape->classes;
    void *const x = upload(compute, operands->x.data, elements * 2),
                *const read = upload(compute, operands->read.data, elements * 2),
                *const w = upload(compute, operands->w.data, weights * 2),
                *const bias = upload(compute, operands->bias.data, shape->classes * 4),
                *const labels = upload(compute, operands->labels, sizeof operands->labels);
    void *result[RESULTS];
    for (int i = 0; i < RESULTS; i++) {
        outcome->result[i] = values_make(dtype_of(i), count_of(shape, i));
        memset(outcome->result[i].data, 0xff, count_of(shape, i) * dtype_size(dtype_of(i)));
        result[i] = upload(compute, outcome->result[i].data, count_of(shape, i) * dtype_size(dtype_of(i)));
    }
    outcome->tally = (struct tally){.images = 5, .batches = 2, .correct = 1, .loss_sum = 1};
    struct tally *const tally = upload(compute, &outcome->tally, sizeof outcome->tally);
    const struct gemm_epilogue add = {.bias = bias};
    const struct gemm_backward below = {.activation = shape->activation,
                                        .pre = activation_needs_input(shape->activation) ? read : NULL,
                                        .output = x,
                                        .bias_grad = result[BELOW_GRAD]};
    const struct gemm_call logits = {.dtype = GEMM_BF16,
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
                           gradient = {.dtype = GEMM_BF16,
                                       .c_f32 = true,
                                       .op = GEMM_TN,
                                       .m = shape->units,
                                       .n = shape->classes,
                                       .k = shape->rows,
                                       .alpha = 1,
                                       .a = x,
                                       .lda = shape->units,
                                       .ldb = shape->classes,
                                       .c = result[W_GRAD],
                                       .ldc = shape->classes},
                           input = {.dtype = GEMM_BF16,
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
    for (int i = 0; i < RESULTS; i++)
        device->driver->download(device, outcome->result[i].data, result[i],
                                 count_of(shape, i) * dtype_size(dtype_of(i)));
    device->driver->download(device, &outcome->tally, tally, sizeof *tally);
    assert_status(device->driver->synchronize(device), STATUS_OK);
    void *const memory[] = {x, read, w, bias, labels, tally};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) device->driver->free(device, memory[i]);
    for (int i = 0; i < RESULTS; i++) device->driver->free(device, result[i]);
    return done;
}

static void assert_close(double got, double want, double bound, const char *what, size_t at) {
    if (!(fabs(got - want) <= bound))
        fail_msg("%s %zu is %.9g, not %.9g +- %.3g", what, at, got, want, bound);
}

/* Loss, and gradient of the logits, of a row. */
static double row_loss(const struct shape *shape, const struct operands *all, const struct outcome *outcome,
                       size_t row, double *grad, bool *correct) {
    double z[16], sum = 0, loss = 0;
    size_t best = 0;
    for (size_t c = 0; c < shape->classes; c++) {
        z[c] = values_get(all->bias, c);
        for (size_t u = 0; u < shape->units; u++)
            z[c] += values_get(all->x, row * shape->units + u) * values_get(all->w, u * shape->classes + c);
        assert_close(values_get(outcome->result[LOGITS], row * shape->classes + c), z[c], 0, "logit", c);
        if (z[c] > z[best]) best = c;
    }
    for (size_t c = 0; c < shape->classes; c++) sum += exp(z[c] - z[best]);
    for (size_t c = 0; c < shape->classes; c++) {
        const double target =
            (c == all->labels[row] ? 1 - shape->smoothing : 0) + shape->smoothing / (double)shape->classes;
        loss -= target * (z[c] - z[best] - log(sum));
        grad[c] = (exp(z[c] - z[best]) / sum - target) / (double)(shape->rows + 3);
    }
    *correct = best == all->labels[row];
    return loss;
}

static void check_outcome(const struct shape *shape, const struct operands *all,
                          const struct outcome *outcome) {
    const size_t rows = shape->rows, units = shape->units, classes = shape->classes;
    double *const grad = calloc(rows * 16, sizeof *grad), *const below = calloc(units * 2, sizeof *below),
                  *const w = calloc(units * classes * 2, sizeof *w), loss = 0, bias[16][2] = {{0}};
    const double ulp = 0x1p-8;
    size_t hits = 0;
    for (size_t r = 0; r < rows; r++) {
        bool correct;
        loss += row_loss(shape, all, outcome, r, grad + r * 16, &correct);
        hits += correct;
        for (size_t c = 0; c < classes; c++) {
            assert_close(values_get(outcome->result[GRAD], r * classes + c), grad[r * 16 + c],
                         ulp * fabs(grad[r * 16 + c]) + 1e-9, "gradient of the logit", r * classes + c);
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
            const double slope = shape->alpha * derivative(shape->activation, read, read);
            assert_close(values_get(outcome->result[X_GRAD], r * units + u), slope * sum,
                         2 * ulp * fabs(slope) * size + 1e-9, "input gradient", r * units + u);
            below[u * 2] += slope * sum;
            below[u * 2 + 1] += fabs(slope) * size;
        }
    }
    for (size_t u = 0; u < units; u++)
        assert_close(values_get(outcome->result[BELOW_GRAD], u), below[u * 2],
                     2 * ulp * below[u * 2 + 1] + 1e-9, "bias gradient of the layer below", u);
    for (size_t i = 0; i < units * classes; i++)
        assert_close(values_get(outcome->result[W_GRAD], i), w[i * 2], ulp * w[i * 2 + 1] + 1e-9,
                     "weight gradient", i);
    for (size_t c = 0; c < classes; c++)
        assert_close(values_get(outcome->result[BIAS_GRAD], c), bias[c][0], ulp * bias[c][1] + 1e-9,
                     "bias gradient", c);
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

static void close_outcome(struct outcome *outcome) {
    for (int i = 0; i < RESULTS; i++) free(outcome->result[i].data);
}

static void close_operands(struct operands *all) {
    if (all->read.data != all->x.data) free(all->read.data);
    free(all->x.data);
    free(all->w.data);
    free(all->bias.data);
}

static void open_output(struct compute *compute) {
    gpu_tensor_needed();
    const struct shape small = {.rows = 16, .units = 16, .classes = 2, .alpha = 1};
    struct operands operands = operands_of(&small);
    struct outcome outcome;
    gpu_open(compute, "cuda-tuned", &(struct compute_options){.threads = 2, .precision = GEMM_MIXED_BF16});
    assert_true(run_layer(compute, &small, &operands, &outcome));
    close_outcome(&outcome);
    close_operands(&operands);
}

static void every_shape_is_right(void **state) {
    (void)state;
    static const size_t rows[] = {128, 1, 15, 16, 17, 96, 127}, units[] = {504, 8, 72, 1000, 1024, 136},
                        classes[] = {10, 16, 2, 3, 9};
    struct compute compute;
    open_output(&compute);
    for (size_t i = 0; i < 210; i += support_stride()) {
        struct shape shape = {.rows = rows[i % 7],
                              .units = units[i % 6],
                              .classes = classes[i % 5],
                              .activation = (enum activation)(i / 7 % ACTIVATION_COUNT),
                              .smoothing = i % 3 ? 0 : 0.1,
                              .alpha = i % 2 ? 1 : 1.25};
        struct operands operands = operands_of(&shape);
        struct outcome outcome, again;
        assert_true(run_layer(&compute, &shape, &operands, &outcome));
        check_outcome(&shape, &operands, &outcome);
        shape.early = true;
        assert_true(run_layer(&compute, &shape, &operands, &again));
        for (int r = 0; r < RESULTS; r++)
            assert_memory_equal(outcome.result[r].data, again.result[r].data,
                                count_of(&shape, r) * dtype_size(dtype_of(r)));
        assert_memory_equal(&outcome.tally, &again.tally, sizeof again.tally);
        close_outcome(&outcome);
        close_outcome(&again);
        close_operands(&operands);
    }
    compute_close(&compute);
}

static void a_bad_label_is_a_bad_step(void **state) {
    (void)state;
    const struct shape shape = {.rows = 100, .units = 504, .classes = 10, .alpha = 1, .bad_label = true};
    struct outcome outcome;
    struct compute compute;
    open_output(&compute);
    struct operands operands = operands_of(&shape);
    assert_true(run_layer(&compute, &shape, &operands, &outcome));
    assert_int_equal(outcome.tally.bad_step, 3);
    assert_true(isnan(outcome.tally.loss_sum));
    close_outcome(&outcome);
    close_operands(&operands);
    compute_close(&compute);
}

static void values_not_finite_are_a_bad_step(void **state) {
    (void)state;
    struct compute compute;
    open_output(&compute);
    for (int i = 0; i < 8; i++) {
        const struct shape shape = {.rows = 100, .units = 504, .classes = 10, .alpha = 1, .uncounted = i / 4};
        struct operands operands = operands_of(&shape);
        struct outcome outcome;
        values_set(i % 2 ? operands.w : operands.bias, 3, i / 2 % 2 ? INFINITY : NAN);
        assert_true(run_layer(&compute, &shape, &operands, &outcome));
        assert_int_equal(outcome.tally.bad_step, shape.uncounted ? 2 : 3);
        assert_int_equal(outcome.tally.batches, shape.uncounted ? 2 : 3);
        assert_int_equal(outcome.tally.images, shape.uncounted ? 5 : 105);
        close_outcome(&outcome);
        close_operands(&operands);
    }
    compute_close(&compute);
}

/* Rows, units and classes beyond the kernel's, and X that is not aligned. */
static void other_layers_are_refused(void **state) {
    (void)state;
    static const struct shape shapes[] = {{.rows = 128, .units = 1032, .classes = 10, .alpha = 1},
                                          {.rows = 128, .units = 504, .classes = 17, .alpha = 1},
                                          {.rows = 16, .units = 12, .classes = 4, .alpha = 1}};
    struct compute compute;
    open_output(&compute);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct operands operands = operands_of(&shapes[i]);
        struct outcome outcome;
        assert_false(run_layer(&compute, &shapes[i], &operands, &outcome));
        close_outcome(&outcome);
        close_operands(&operands);
    }
    compute_close(&compute);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_shape_is_right),
        cmocka_unit_test(a_bad_label_is_a_bad_step),
        cmocka_unit_test(values_not_finite_are_a_bad_step),
        cmocka_unit_test(other_layers_are_refused),
    };
    return cmocka_run_group_tests_name("gpu output layer", tests, NULL, NULL);
}
