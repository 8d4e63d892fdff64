/* The element-wise work of a step: a template, parameters in kernels/host/element.h. */
#include "kernels/host/ops/loss.h"
#include "kernels/host/tuned/fused.h"

/* Rows first .. end - 1 of the batch: losses, gradients of the mean loss of `rows` rows, number of correct
   rows. Returns true if every loss is finite. */
static bool NAME(loss_rows)(const struct tuned_fused_state *state, const uint8_t *labels, size_t rows,
                            size_t first, size_t end, size_t *correct) {
    const size_t classes = state->network.layer[state->network.depth - 1].out;
    const struct tuned_fused_layer *last = &state->layer[state->network.depth - 1];
    bool finite = true;
    for (size_t r = first; r < end; r++) {
        state->loss[r] =
            NAME(row_loss)(classes, 0, (const REAL *)last->output + r * classes, labels[r],
                           (REAL)(1.0 / (double)rows), (REAL *)last->grad + r * classes, correct);
        finite &= isfinite(state->loss[r]) != 0;
    }
    return finite;
}

/* Updates columns first .. end - 1 of a layer's bias. The gradient: column sums of dL/dZ, in row order. */
static void NAME(update_bias)(const struct tuned_fused_state *state, size_t l, size_t rows, double rate,
                              size_t first, size_t end) {
    enum { CHUNK = 64 };
    const struct fused_layer *layer = &state->network.layer[l];
    const REAL lr = (REAL)rate, mu = (REAL)state->network.momentum, decay = (REAL)state->network.weight_decay;
    const REAL *grad = state->layer[l].grad;
    REAL *bias = layer->bias, *velocity = layer->bias_velocity;
    for (size_t col = first; col < end; col += CHUNK) {
        const size_t width = end - col < CHUNK ? end - col : CHUNK;
        REAL sum[CHUNK] = {0};
        for (size_t r = 0; r < rows; r++)
            for (size_t j = 0; j < width; j++) sum[j] += grad[r * layer->out + col + j];
        for (size_t j = 0; j < width; j++) {
            /* explicit: which elements are in whole vectors depends on the number of threads */
            REAL g = FMA(decay, bias[col + j], sum[j]);
            if (velocity) g = velocity[col + j] = FMA(mu, velocity[col + j], g);
            bias[col + j] = FMA(-lr, g, bias[col + j]);
        }
    }
}
