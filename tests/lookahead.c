/* The first layer: late weights, corrections, Gram matrices. */
#include "tests/lookahead.h"

#include <string.h>

#include "tests/lookahead_parts.h"

/* --- what the late weights lack --- */

/* The optimiser is linear in W, V and the gradient g: with decay c and U the step that it takes,
     V' = momentum V + g + c W,    U = n (g + c W) + m V,    W' = W - rate U,
   where n = 1 and m = momentum or, with Nesterov momentum, n = 1 + momentum and m = momentum^2. The loop runs
   from the newest step to the oldest: (w, v) are the derivatives of the final W by W and V before step k. */
struct lookahead_terms lookahead_terms(const struct config *config, const double *rates, size_t count) {
    const double momentum = config->momentum, decay = config->weight_decay;
    const double n = config->nesterov ? 1 + momentum : 1,
                 m = config->nesterov ? momentum * momentum : momentum;
    struct lookahead_terms terms;
    double w = 1, v = 0;
    for (size_t k = count; k-- > 0;) {
        terms.gradient[k] = v - w * rates[k] * n;
        const double w_before = w + terms.gradient[k] * decay;
        v = v * momentum - w * rates[k] * m;
        w = w_before;
    }
    terms.weights = w;
    terms.velocity = v;
    return terms;
}

/* --- pixels --- */

/* The integers of an image, [pixels + 1]; the last is the bias' input. */
static void integers(const struct lookahead *model, uint32_t image, int16_t *u) {
    const size_t pixels = model->layer[0].in;
    const uint8_t *bytes = model->data->images + image * pixels;
    const bool is_signed = model->config->input_range == INPUT_SIGNED;
    for (size_t p = 0; p < pixels; p++) u[p] = (int16_t)(is_signed ? 2 * bytes[p] - LOOKAHEAD_ONE : bytes[p]);
    u[pixels] = LOOKAHEAD_ONE;
}

void lookahead_gram(struct lookahead *model, const struct lookahead_batch *a, const struct lookahead_batch *b,
                    int32_t *products) {
    const size_t length = model->layer[0].in + 1;
    int16_t *const u = model->pixels[0], *const v = model->pixels[1];
    for (size_t i = 0; i < a->rows; i++) integers(model, a->index[i], u + i * length);
    for (size_t j = 0; j < b->rows; j++) integers(model, b->index[j], v + j * length);
    for (size_t i = 0; i < a->rows; i++)
        for (size_t j = 0; j < b->rows; j++) {
            const int16_t *x = u + i * length, *y = v + j * length;
            int32_t sum = 0;
            for (size_t p = 0; p < length; p++) sum += x[p] * y[p];
            products[i * b->rows + j] = sum;
        }
}

/* X of a batch, [rows][pixels + 1]. */
static void gather(struct lookahead *model, const struct lookahead_batch *batch) {
    const size_t length = model->layer[0].in + 1;
    for (size_t i = 0; i < batch->rows; i++) {
        integers(model, batch->index[i], model->pixels[0]);
        for (size_t p = 0; p < length; p++)
            model->layer[0].input[i * length + p] =
                lookahead_stored(model, (double)model->pixels[0][p] / LOOKAHEAD_ONE);
    }
}

/* --- late weights --- */

static struct lookahead_batch batch_of(const struct lookahead_past *past) {
    return (struct lookahead_batch){.rows = past->rows, .index = past->index, .rate = past->rate};
}

/* The oldest step updates the late weights, as SGD would have. Uses layer[0].input. */
static void apply_oldest(struct lookahead *model) {
    const struct lookahead_past oldest = model->past[0];
    const struct lookahead_batch batch = batch_of(&oldest);
    gather(model, &batch);
    lookahead_gradient(model, &model->layer[0], batch.rows, oldest.grad);
    lookahead_update(model, &model->layer[0], batch.rate);
    model->pasts--;
    memmove(model->past, model->past + 1, model->pasts * sizeof *model->past);
    model->past[model->pasts] = oldest; /* its memory is for the next step */
}

void lookahead_drain(struct lookahead *model) {
    while (model->pasts) apply_oldest(model);
}

static void append_past(struct lookahead *model, const struct lookahead_batch *batch) {
    struct lookahead_past *past = &model->past[model->pasts++];
    past->rows = batch->rows;
    past->rate = batch->rate;
    memcpy(past->index, batch->index, batch->rows * sizeof *past->index);
    memcpy(past->grad, model->layer[0].grad, batch->rows * model->layer[0].out * sizeof *past->grad);
}

/* --- the step --- */

/* Adds factor G dZ1 of an earlier step to Z1. */
static void add_correction(struct lookahead *model, const struct lookahead_batch *batch,
                           const struct lookahead_past *past, double factor) {
    const struct lookahead_layer *layer = &model->layer[0];
    const struct lookahead_batch earlier = batch_of(past);
    const size_t rows = batch->rows, out = layer->out;
    double *row = model->gram_row;
    model->gram(model, batch, &earlier, model->products);
    memset(model->correction, 0, rows * out * sizeof *model->correction);
    for (size_t i = 0; i < rows; i++) {
        for (size_t j = 0; j < past->rows; j++)
            row[j] = lookahead_stored(model, (double)model->products[i * past->rows + j] /
                                                 (LOOKAHEAD_ONE * LOOKAHEAD_ONE));
        lookahead_add_product(model, 1, past->rows, out, (struct lookahead_matrix){row, 0, 1},
                              (struct lookahead_matrix){past->grad, out, 1}, model->correction + i * out);
    }
    factor = lookahead_stored(model, factor);
    for (size_t i = 0; i < rows * out; i++)
        layer->pre[i] = lookahead_stored(model, layer->pre[i] + factor * model->correction[i]);
}

void lookahead_first_layer(struct lookahead *model, const struct lookahead_batch *batch) {
    const struct lookahead_layer *layer = &model->layer[0];
    const size_t length = layer->in + 1, weights = length * layer->out;
    double rates[LOOKAHEAD_MOST_DEPTH];
    while (model->pasts > model->depth) apply_oldest(model);
    for (size_t k = 0; k < model->pasts; k++) rates[k] = model->past[k].rate;
    const struct lookahead_terms terms = model->terms(model->config, rates, model->pasts);
    const double w = lookahead_stored(model, terms.weights), v = lookahead_stored(model, terms.velocity);
    for (size_t i = 0; i < weights; i++)
        model->ahead[i] =
            lookahead_stored(model, w * layer->weight[i] + (layer->velocity ? v * layer->velocity[i] : 0));
    gather(model, batch);
    memset(layer->pre, 0, batch->rows * layer->out * sizeof *layer->pre);
    lookahead_add_product(model, batch->rows, length, layer->out,
                          (struct lookahead_matrix){layer->input, length, 1},
                          (struct lookahead_matrix){model->ahead, layer->out, 1}, layer->pre);
    for (size_t k = 0; k < model->pasts; k++)
        add_correction(model, batch, &model->past[k], terms.gradient[k]);
}

double lookahead_step(struct lookahead *model, const struct lookahead_batch *batch) {
    lookahead_first_layer(model, batch);
    const double loss = lookahead_other_layers(model, batch);
    append_past(model, batch);
    return loss;
}
