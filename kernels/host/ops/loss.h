/* Softmax cross-entropy of a row: a template, parameters in kernels/host/element.h. */
#include "kernels/host/ops/template.h"

/* e[j] = exp(logits[j] - max) for a chunk of classes, 0 beyond the last. Constant trip counts vectorise. */
INLINE void NAME(exponentials)(size_t classes, const STORED *restrict logits, REAL max, REAL *restrict e) {
    REAL x[CLASS_CHUNK];
    for (size_t j = 0; j < CLASS_CHUNK; j++) x[j] = j < classes ? LOAD(logits[j]) - max : 0;
#pragma omp simd
    for (size_t j = 0; j < CLASS_CHUNK; j++) e[j] = EXP(x[j]);
    for (size_t j = 0; j < CLASS_CHUNK; j++) e[j] = j < classes ? e[j] : 0;
}

/* Returns the loss of a row. Writes the gradient times `scale` to `grad` unless it is NULL. */
static double NAME(row_loss)(size_t classes, double smoothing, const STORED *restrict logits, size_t label,
                             REAL scale, STORED *restrict grad, size_t *correct) {
    REAL max = LOAD(logits[0]), sum = 0, e[CLASS_CHUNK];
    for (size_t j = 1; j < classes; j++) max = LOAD(logits[j]) > max ? LOAD(logits[j]) : max;
    for (size_t from = 0; from < classes; from += CLASS_CHUNK) {
        NAME(exponentials)(classes - from, logits + from, max, e);
        for (size_t j = 0; j < CLASS_CHUNK; j++) sum += e[j];
    }
    if (label >= classes) return (double)NAN;
    /* the two values of the target, times scale */
    const REAL off = (REAL)(smoothing / (double)classes) * scale, on = (REAL)(1 - smoothing) * scale + off;
    for (size_t from = 0; grad && from < classes; from += CLASS_CHUNK) {
        const size_t left = classes - from, width = left < CLASS_CHUNK ? left : CLASS_CHUNK;
        const REAL factor = scale / sum;
        if (classes > CLASS_CHUNK) NAME(exponentials)(left, logits + from, max, e);
        for (size_t j = 0; j < width; j++)
            grad[from + j] = STORE(e[j] * factor - (from + j == label ? on : off));
    }
    bool right = LOAD(logits[label]) == max && sum > 0; /* a row with a NaN is never right */
    for (size_t j = 0; j < label; j++) right &= LOAD(logits[j]) != max;
    *correct += right;
    const double loss = log((double)sum) - ((double)LOAD(logits[label]) - (double)max);
    if (smoothing == 0) return loss;
    double all = 0; /* sum of shifted logits */
    for (size_t j = 0; j < classes; j++) all += (double)LOAD(logits[j]) - (double)max;
    return (1 - smoothing) * loss + smoothing * (log((double)sum) - all / (double)classes);
}
