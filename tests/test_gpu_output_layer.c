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
    enum gemm_dtype dtype; /* of operands: GEMM_BF16, GEMM_F16 or GEMM_F32 */
    size_t rows, units, classes;
    enum activation activation;
    double smoothing, alpha;          /* alpha: of the input gradient */
    bool bad_label, early, uncounted; /* early: b_complete is set; uncounted: without the loss, too */
    bool apart, pre;         /* apart: the derivative does not read X; pre: logits are stored twice */
    enum activation forward; /* of the logits */
    bool bad_weight;         /* bad_value is one of the weights, else of the biases */
    double bad_value;        /* 0: none */
};

/* Operands on the host. In 16 bits, X and W are small multiples of powers of 2, so that logits are exact. */
enum { MOST_ROWS = 5000 };
struct operands {
    struct values x, w, bias, read;
    uint8_t labels[MOST_ROWS];
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
    const size_t elements = shape->rows * shape->units, weights = shape->units * shape->classes;
    const bool exact = gemm_is_16bit(shape->dtype);
    struct operands all = {
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

static size_t count_of(const struct shape *shape, int result) {
    const size_t elements = shape->rows * shape->units, logits = shape->rows * shape->classes,
                 weights = shape->units * shape->classes;
    const size_t counts[] = {elements, shape->units, weights, shape->classes, 1, logits, logits};
    return counts[result];
}

static enum gemm_dtype dtype_of(const struct shape *shape, int result) {
    return result == X_GRAD || result == LOGITS || result == GRAD ? shape->dtype
           : result == LOSS                                       ? GEMM_F64
                                                                  : GEMM_F32;
}

static size_t bytes_of(const struct shape *shape, int result) {
    return count_of(shape, result) * dtype_size(dtype_of(shape, result));
}

static void *upload(struct compute *compute, const void *values, size_t bytes) {
    struct device *device = &compute->device;
    void *memory = device->driver->alloc(device, bytes);
    assert_non_null(memory);
    device->driver->upload(device, memory, values, bytes);
    return memory;
}

static double batch_of(const struct shape *shape) {
    return (double)(shape->rows + 3);
}

/* Gradients of activations are stored times this. */
static double scale_of(const struct shape *shape) {
    return shape->dtype == GEMM_F16 ? 1024 * batch_of(shape) : 1;
}

/* Runs the layer; results are poisoned before. False: the backend does not take it. */
static bool run_layer(struct compute *compute, const struct shape *shape, const struct operands *operands,
                      struct outcome *outcome) {
    struct device *device = &compute->device;
    const size_t size = dtype_size(shape->dtype), elements = shape->rows * shape->units;
    void *const x = upload(compute, operands->x.data, elements * size),
                *const read = upload(compute, operands->read.data, elements * size),
                *const w = upload(compute, operands->w.data, shape->units * shape->classes * size),
                *const bias = upload(compute, operands->bias.data, shape->classes * 4),
                *const labels = upload(compute, operands->labels, sizeof operands->labels);
    void *result[RESULTS];
    for (int i = 0; i < RESULTS; i++) {
        outcome->result[i] = values_make(dtype_of(shape, i), count_of(shape, i));
        memset(outcome->result[i].data, 0xff, bytes_of(shape, i));
        result[i] = upload(compute, outcome->result[i].data, bytes_of(shape, i));
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
    for (int i = 0; i < RESULTS; i++)
        device->driver->download(device, outcome->result[i].data, result[i], bytes_of(shape, i));
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

/* Rounding error of an element of this type, relative; of float32 with a few operations before. */
static double error_of(const struct shape *shape) {
    return shape->dtype == GEMM_F32 ? 0x1p-20 : shape->dtype == GEMM_F16 ? 0x1p-11 : 0x1p-8;
}

/* z: the logits of a row, as computed, which are checked. */
static void check_logits(const struct shape *shape, const struct operands *all, const struct outcome *outcome,
                         size_t row, double *z) {
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
static double row_loss(const struct shape *shape, const struct operands *all, const struct outcome *outcome,
                       size_t row, double *grad, bool *correct) {
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

static void check_outcome(const struct shape *shape, const struct operands *all,
                          const struct outcome *outcome) {
    const size_t rows = shape->rows, units = shape->units, classes = shape->classes;
    double *const grad = calloc(rows * 16, sizeof *grad), *const below = calloc(units * 2, sizeof *below),
                  *const w = calloc(units * classes * 2, sizeof *w), loss = 0, bias[16][2] = {{0}};
    const double ulp = error_of(shape), scale = scale_of(shape);
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
            assert_close(values_get(outcome->result[X_GRAD], r * units + u), slope * sum,
                         2 * ulp * terms * size + 1e-9 * scale, "input gradient", r * units + u);
            below[u * 2] += slope * sum;
            below[u * 2 + 1] += terms * size;
        }
    }
    for (size_t u = 0; u < units; u++)
        assert_close(scale * values_get(outcome->result[BELOW_GRAD], u), below[u * 2],
                     2 * ulp * below[u * 2 + 1] + 1e-9 * scale, "bias gradient of the layer below", u);
    for (size_t i = 0; i < units * classes; i++)
        assert_close(scale * values_get(outcome->result[W_GRAD], i), w[i * 2],
                     ulp * w[i * 2 + 1] + 1e-9 * scale, "weight gradient", i);
    for (size_t c = 0; c < classes; c++)
        assert_close(scale * values_get(outcome->result[BIAS_GRAD], c), bias[c][0],
                     ulp * bias[c][1] + 1e-9 * scale, "bias gradient", c);
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

static const enum gemm_dtype types[] = {GEMM_BF16, GEMM_F32};
enum { TYPES = sizeof types / sizeof *types };

/* As run_layer, for the tally alone. */
static bool run_for_tally(struct compute *compute, const struct shape *shape, struct tally *tally) {
    struct operands operands = operands_of(shape);
    struct outcome outcome;
    const bool done = run_layer(compute, shape, &operands, &outcome);
    *tally = outcome.tally;
    close_outcome(&outcome);
    close_operands(&operands);
    return done;
}

static void open_output(struct compute *compute, enum gemm_dtype dtype) {
    gpu_tensor_needed();
    const struct shape small = {.dtype = dtype, .rows = 16, .units = 16, .classes = 2, .alpha = 1};
    const struct compute_options options = {.threads = 2,
                                            .precision = dtype == GEMM_BF16  ? GEMM_MIXED_BF16
                                                         : dtype == GEMM_F16 ? GEMM_MIXED_F16
                                                                             : GEMM_TRUE};
    gpu_open(compute, "cuda-tuned", &options);
    assert_true(run_for_tally(compute, &small, &(struct tally){0}));
}

/* The layer is right; the same bits once more, with an early start. */
static void check_shape(struct compute *compute, struct shape shape) {
    struct operands operands = operands_of(&shape);
    struct outcome outcome, again;
    assert_true(run_layer(compute, &shape, &operands, &outcome));
    check_outcome(&shape, &operands, &outcome);
    shape.early = true;
    assert_true(run_layer(compute, &shape, &operands, &again));
    for (int r = 0; r < RESULTS; r++)
        assert_memory_equal(outcome.result[r].data, again.result[r].data, bytes_of(&shape, r));
    assert_memory_equal(&outcome.tally, &again.tally, sizeof again.tally);
    close_outcome(&outcome);
    close_outcome(&again);
    close_operands(&operands);
}

static void every_shape_is_right(void **state) {
    (void)state;
    static const size_t rows[] = {128, 1, 15, 16, 17, 96, 127}, classes[] = {10, 16, 2, 3, 9},
                        units[TYPES][6] = {{504, 8, 72, 1000, 1024, 136}, {500, 4, 68, 1020, 1024, 260}};
    for (size_t t = 0; t < TYPES; t++) {
        struct compute compute;
        open_output(&compute, types[t]);
        for (size_t i = 0; i < 210; i += support_stride())
            check_shape(&compute, (struct shape){.dtype = types[t],
                                                 .rows = rows[i % 7],
                                                 .units = units[t][i % 6],
                                                 .classes = classes[i % 5],
                                                 .activation = (enum activation)(i / 7 % ACTIVATION_COUNT),
                                                 .smoothing = i % 3 ? 0 : 0.1,
                                                 .alpha = i % 2 ? 1 : 1.25,
                                                 .apart = i % 4 > 1});
        compute_close(&compute);
    }
}

/* With more than 128 rows: one turn of a thread block and several, the last rows of a tile, units of two
   blocks. */
static void many_rows_are_right(void **state) {
    (void)state;
    static const struct {
        size_t rows, units, classes;
    } shapes[] = {{129, 504, 10},  {130, 8, 2},      {160, 520, 16},   {1024, 504, 10}, {257, 1032, 9},
                  {640, 2048, 10}, {2049, 1024, 10}, {4101, 136, 3},   {144, 2056, 10}, {333, 4096, 16},
                  {2300, 4096, 5}, {1000, 2504, 10}, {4999, 2048, 10}, {2048, 3000, 7}};
    static const enum gemm_dtype halves[] = {GEMM_BF16, GEMM_F16};
    static const enum activation activations[] = {ACTIVATION_RELU, ACTIVATION_TANH, ACTIVATION_SIGMOID,
                                                  ACTIVATION_NONE, ACTIVATION_SCALED_TANH};
    for (size_t t = 0; t < 2; t++) {
        struct compute compute;
        open_output(&compute, halves[t]);
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i += 1 + support_stride() / 10)
            check_shape(&compute, (struct shape){.dtype = halves[t],
                                                 .rows = shapes[i].rows,
                                                 .units = shapes[i].units,
                                                 .classes = shapes[i].classes,
                                                 .activation = activations[(i + t) % 5],
                                                 .smoothing = i % 3 ? 0 : 0.1,
                                                 .alpha = i % 2 ? 1 : 1.25});
        compute_close(&compute);
    }
}

static void bad_labels_and_values_not_finite_are_a_bad_step(void **state) {
    (void)state;
    static const struct shape shapes[] = {{.dtype = GEMM_BF16, .rows = 100, .units = 504},
                                          {.dtype = GEMM_F32, .rows = 100, .units = 504},
                                          {.dtype = GEMM_BF16, .rows = 300, .units = 504},
                                          {.dtype = GEMM_F16, .rows = 300, .units = 2504}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        struct shape shape = shapes[s];
        struct compute compute;
        shape.classes = 10;
        shape.alpha = 1;
        open_output(&compute, shape.dtype);
        for (int i = 0; i < 9; i++) {
            struct tally tally;
            shape.bad_label = i == 8;
            shape.bad_weight = i % 2;
            shape.bad_value = i == 8 ? 0 : i / 2 % 2 ? INFINITY : NAN;
            shape.uncounted = i / 4 % 2;
            assert_true(run_for_tally(&compute, &shape, &tally));
            assert_int_equal(tally.bad_step, shape.uncounted ? 2 : 3);
            assert_int_equal(tally.batches, shape.uncounted ? 2 : 3);
            assert_int_equal(tally.images, 5 + (shape.uncounted ? 0 : shape.rows));
            assert_true(shape.uncounted || !isfinite(tally.loss_sum));
        }
        compute_close(&compute);
    }
}

/* Rows, units and classes beyond the kernel's, X that is not aligned, and logits with more than a bias. */
static void other_layers_are_refused(void **state) {
    (void)state;
    static const struct shape shapes[] = {
        {.rows = 128, .units = 4104, .classes = 10, .alpha = 1},
        {.rows = 1000, .units = 4104, .classes = 10, .alpha = 1},
        {.rows = 128, .units = 504, .classes = 17, .alpha = 1},
        {.rows = 16, .units = 10, .classes = 4, .alpha = 1},
        {.rows = 16, .units = 16, .classes = 4, .alpha = 1, .forward = ACTIVATION_RELU},
        {.rows = 16, .units = 16, .classes = 4, .alpha = 1, .pre = true}};
    for (size_t t = 0; t < TYPES; t++) {
        struct compute compute;
        open_output(&compute, types[t]);
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            struct shape shape = shapes[i];
            shape.dtype = types[t];
            assert_false(run_for_tally(&compute, &shape, &(struct tally){0}));
        }
        compute_close(&compute);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_shape_is_right),
        cmocka_unit_test(many_rows_are_right),
        cmocka_unit_test(bad_labels_and_values_not_finite_are_a_bad_step),
        cmocka_unit_test(other_layers_are_refused),
    };
    return cmocka_run_group_tests_name("gpu output layer", tests, NULL, NULL);
}
