/* The element-wise ops of one dtype: a template, parameters in kernels/host/element.h. */
#include "kernels/host/ops/augment.h"
#include "kernels/host/ops/dropout.h"
#include "kernels/host/ops/loss.h"
#include "kernels/host/ops/norms.h"
#include "kernels/host/ops/parts.h"
#include "kernels/host/ops/template.h"
#include "kernels/host/ops/update.h"

static void NAME(gather)(void *context, size_t rows, size_t features, enum input_range range,
                         const uint8_t *images, const uint8_t *labels, const uint32_t *index, void *x,
                         uint8_t *y) {
    const REAL scale = (REAL)input_scale(range), offset = (REAL)input_offset(range);
#pragma omp parallel for schedule(static) num_threads(threads_for(context, rows *features))
    for (size_t r = 0; r < rows; r++) {
        const size_t i = index ? index[r] : r;
        const uint8_t *restrict image = images + i * features;
        STORED *restrict out = (STORED *)x + r * features;
        if (index && r + PREFETCH_IMAGES < rows) /* hardware prefetch cannot predict a random index */
            for (size_t j = 0; j < features; j += 64)
                __builtin_prefetch(images + index[r + PREFETCH_IMAGES] * features + j);
        for (size_t j = 0; j < features; j++) out[j] = STORE(scale * ((REAL)image[j] - offset));
        y[r] = labels[i];
    }
}

/* `pre` and `out` are equal or do not overlap, as `omp simd` requires. */
INLINE void NAME(activate_row)(enum activation activation, size_t cols, const REAL *bias, STORED *pre,
                               STORED *out) {
#pragma omp simd
    for (size_t j = 0; j < cols; j++) {
        const STORED z = STORE(LOAD(pre[j]) + bias[j]);
        pre[j] = z;
        out[j] = STORE(activate(activation, LOAD(z)));
    }
}

static void NAME(bias_activation)(void *context, size_t rows, size_t cols, enum activation activation,
                                  const void *bias, void *pre, void *out) {
#pragma omp parallel for schedule(static) num_threads(threads_for(context, rows *cols))
    for (size_t r = 0; r < rows; r++) {
        STORED *pre_row = (STORED *)pre + r * cols, *out_row = (STORED *)out + r * cols;
        FOR_ACTIVATION(activation, NAME(activate_row)(A, cols, bias, pre_row, out_row))
    }
}

/* Columns col .. col + width - 1: grad *= act', and sum += the column sums. */
INLINE void NAME(backward_chunk)(enum activation activation, size_t rows, size_t cols, size_t col,
                                 size_t width, const STORED *pre, const STORED *out, STORED *grad,
                                 REAL *sum) {
    REAL slope[COLUMN_CHUNK]; /* in a loop of their own: gcc makes a branch of ReLU's 0 or 1 times a value */
    for (size_t r = 0; r < rows; r++) {
        const size_t at = r * cols + col;
#pragma omp simd
        for (size_t j = 0; j < width; j++)
            slope[j] = derivative(activation, LOAD(pre[at + j]), LOAD(out[at + j]));
#pragma omp simd
        for (size_t j = 0; j < width; j++) {
            const STORED g = STORE(BOUNDED(BOUNDED(LOAD(grad[at + j])) * slope[j]));
            grad[at + j] = g;
            sum[j] += LOAD(g);
        }
    }
}

static void NAME(bias_activation_backward)(void *context, size_t rows, size_t cols,
                                           enum activation activation, const void *pre, const void *out,
                                           void *grad, double alpha, double beta, void *bias_grad) {
    const REAL old_share = (REAL)beta, new_share = (REAL)alpha;
#pragma omp parallel for schedule(static) num_threads(threads_for(context, rows *cols))
    for (size_t col = 0; col < cols; col += COLUMN_CHUNK) {
        const size_t width = cols - col < COLUMN_CHUNK ? cols - col : COLUMN_CHUNK;
        REAL sum[COLUMN_CHUNK] = {0};
        FOR_ACTIVATION(activation, NAME(backward_chunk)(A, rows, cols, col, width, pre, out, grad, sum))
        REAL *to = (REAL *)bias_grad + col;
        for (size_t j = 0; j < width; j++)
            to[j] = old_share != 0 ? old_share * to[j] + new_share * sum[j] : new_share * sum[j];
    }
}

static void NAME(dropout)(void *context, size_t count, const struct dropout *dropout, const void *in,
                          void *out) {
    const STORED *from = in;
    STORED *to = out; /* equal to `in`, or no overlap */
    const uint32_t threshold = dropout_threshold(dropout->rate);
    const REAL scale = (REAL)dropout_scale(dropout->rate);
    const size_t first_run = dropout->first / DROPOUT_RUN, skip = dropout->first % DROPOUT_RUN;
    const size_t runs = (skip + count + DROPOUT_RUN - 1) / DROPOUT_RUN;
#pragma omp parallel for schedule(static) num_threads(threads_for(context, count))
    for (size_t run = 0; run < runs; run++) {
        const size_t start = run ? run * DROPOUT_RUN - skip : 0, at = run ? 0 : skip;
        const size_t most = DROPOUT_RUN - at, length = count - start < most ? count - start : most;
        uint16_t bits[DROPOUT_RUN];
        dropout_bits(dropout, first_run + run, bits);
#pragma omp simd
        for (size_t i = 0; i < length; i++)
            to[start + i] = STORE(bits[at + i] < threshold ? 0 : scale * LOAD(from[start + i]));
    }
}

static void NAME(sign_step)(void *context, size_t count, double amount, const void *grad, void *x) {
    const STORED *restrict g = grad;
    STORED *restrict to = x;
    const REAL by = (REAL)amount;
#pragma omp parallel for simd schedule(static) num_threads(threads_for(context, count))
    for (size_t i = 0; i < count; i++) {
        const REAL slope = LOAD(g[i]);
        to[i] = STORE(LOAD(to[i]) + (slope > 0 ? by : slope < 0 ? -by : 0));
    }
}

static void NAME(softmax_cross_entropy)(void *context, size_t rows, double divisor, size_t classes,
                                        double smoothing, const void *logits, const uint8_t *labels,
                                        void *grad, double *loss, struct tally *tally, bool counted) {
    struct partial_loss part[SLICES] = {{0}};
    const REAL scale = (REAL)(1.0 / divisor);
#pragma omp parallel for schedule(static) num_threads(threads_for(context, 8 * rows * classes))
    for (size_t s = 0; s < SLICES; s++)
        for (size_t r = rows * s / SLICES; r < rows * (s + 1) / SLICES; r++)
            part[s].loss +=
                NAME(row_loss)(classes, smoothing, (const STORED *)logits + r * classes, labels[r], scale,
                               grad ? (STORED *)grad + r * classes : NULL, &part[s].correct);
    double sum = 0;
    uint64_t correct = 0;
    for (size_t s = 0; s < SLICES; s++) {
        sum += part[s].loss;
        correct += part[s].correct;
    }
    if (counted) {
        tally->correct += correct;
        tally->loss_sum += sum;
        tally->images += rows;
        tally->batches++;
    }
    if (!isfinite(sum) && !tally->bad_step) tally->bad_step = tally->batches;
    if (loss) *loss = sum / (double)rows;
}

static void NAME(round)(void *context, size_t count, const void *values, void *rounded) {
    const REAL *restrict in = values;
    STORED *restrict out = rounded;
#pragma omp parallel for simd schedule(static) num_threads(threads_for(context, count))
    for (size_t i = 0; i < count; i++) out[i] = STORE(in[i]);
}

static void NAME(add)(void *context, size_t count, const void *from, void *into) {
    const REAL *restrict in = from;
    REAL *restrict to = into;
#pragma omp parallel for simd schedule(static) num_threads(threads_for(context, count))
    for (size_t i = 0; i < count; i++) to[i] += in[i];
}

static const struct ops NAME(ops) = {
    .gather = NAME(gather),
    .bias_activation = NAME(bias_activation),
    .bias_activation_backward = NAME(bias_activation_backward),
    .dropout = NAME(dropout),
    .sign_step = NAME(sign_step),
    .softmax_cross_entropy = NAME(softmax_cross_entropy),
    .add = NAME(add),
    .part_values = host_part_values,
    .count_batch = host_count_batch,
    .update = NAME(update),
    .clip_norm = NAME(clip_norm),
    .max_norm = NAME(max_norm),
    .round = NAME(round),
    .augment = host_augment,
};
