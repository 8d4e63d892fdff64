/* Opens and closes the model; rounds it to float32. */
#include "tests/lookahead.h"

#include <stdlib.h>
#include <string.h>

#include "tests/support.h"

static double *reals(size_t count) {
    double *memory = calloc(count, sizeof *memory);
    assert_non_null(memory);
    return memory;
}

static void open_layer(struct lookahead_layer *layer, size_t rows) {
    const size_t weights = (layer->in + 1) * layer->out;
    layer->gradient = reals(weights);
    layer->input = reals(rows * (layer->in + 1));
    layer->pre = reals(rows * layer->out);
    layer->grad = reals(rows * layer->out);
    for (size_t i = 0; i < rows; i++) layer->input[i * (layer->in + 1) + layer->in] = 1;
}

static void open_first_layer(struct lookahead *model, size_t rows) {
    const struct lookahead_layer *layer = &model->layer[0];
    const size_t length = layer->in + 1;
    model->ahead = reals(length * layer->out);
    model->correction = reals(rows * layer->out);
    model->gram_row = reals(rows);
    model->products = malloc(rows * rows * sizeof *model->products);
    for (int i = 0; i < 2; i++) model->pixels[i] = malloc(rows * length * sizeof **model->pixels);
    assert_true(model->products && model->pixels[0] && model->pixels[1]);
    for (size_t k = 0; k <= model->depth; k++) {
        model->past[k].index = malloc(rows * sizeof *model->past[k].index);
        model->past[k].grad = reals(rows * layer->out);
        assert_non_null(model->past[k].index);
    }
}

void lookahead_open(struct lookahead *model, const struct config *config, const struct dataset *data,
                    const double *state, size_t state_count, size_t depth) {
    const struct layer_list *list = &config->layers;
    const size_t rows = (size_t)config->batch_size < data->count ? (size_t)config->batch_size : data->count;
    assert_true(depth <= LOOKAHEAD_MOST_DEPTH);
    *model = (struct lookahead){.config = config,
                                .data = data,
                                .depth = depth,
                                .state = reals(state_count),
                                .state_count = state_count,
                                .layers = list->count - 1,
                                .gram = lookahead_gram,
                                .terms = lookahead_terms};
    memcpy(model->state, state, state_count * sizeof *state);
    const size_t parameters = config->momentum > 0 ? state_count / 2 : state_count;
    double *at = model->state;
    for (size_t l = 0; l < model->layers; l++) {
        struct lookahead_layer *layer = &model->layer[l];
        *layer = (struct lookahead_layer){.in = list->width[l], .out = list->width[l + 1], .weight = at};
        layer->velocity = config->momentum > 0 ? at + parameters : NULL;
        open_layer(layer, rows);
        at += (layer->in + 1) * layer->out;
    }
    assert_true(at == model->state + parameters);
    open_first_layer(model, rows);
}

void lookahead_close(struct lookahead *model) {
    for (size_t l = 0; l < model->layers; l++) {
        struct lookahead_layer *layer = &model->layer[l];
        double *const memory[] = {layer->gradient, layer->input, layer->pre, layer->grad};
        for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) free(memory[i]);
    }
    for (size_t k = 0; k <= model->depth; k++) {
        free(model->past[k].index);
        free(model->past[k].grad);
    }
    for (int i = 0; i < 2; i++) free(model->pixels[i]);
    free(model->ahead);
    free(model->correction);
    free(model->gram_row);
    free(model->products);
    free(model->state);
    *model = (struct lookahead){0};
}

void lookahead_copy(struct lookahead *to, const struct lookahead *from) {
    const size_t out = from->layer[0].out;
    memcpy(to->state, from->state, from->state_count * sizeof *from->state);
    for (size_t k = 0; k < from->pasts; k++) {
        const struct lookahead_past *past = &from->past[k];
        to->past[k].rows = past->rows;
        to->past[k].rate = past->rate;
        memcpy(to->past[k].index, past->index, past->rows * sizeof *past->index);
        memcpy(to->past[k].grad, past->grad, past->rows * out * sizeof *past->grad);
    }
    to->pasts = from->pasts;
}

static void round_all(double *values, size_t count) {
    for (size_t i = 0; i < count; i++) values[i] = (double)(float)values[i];
}

void lookahead_round(struct lookahead *model) {
    model->float32 = true;
    round_all(model->state, model->state_count);
    for (size_t k = 0; k < model->pasts; k++)
        round_all(model->past[k].grad, model->past[k].rows * model->layer[0].out);
}
