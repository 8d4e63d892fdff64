/* The parts of tests/lookahead.h that any SGD has: products, updates, the other layers. */
#ifndef TESSERA_TESTS_LOOKAHEAD_PARTS_H
#define TESSERA_TESTS_LOOKAHEAD_PARTS_H

#include "tests/lookahead.h"

/* Element (i, j) is at[i * row + j * column]. */
struct lookahead_matrix {
    const double *at;
    size_t row, column;
};

/* The number as the model stores it. */
static inline double lookahead_stored(const struct lookahead *model, double x) {
    return model->float32 ? (double)(float)x : x;
}

/* c += a b, with c [rows][cols] and `inner` products an element, one after another. In float32 each product
   is exact and each sum rounded, as by fmaf. */
void lookahead_add_product(const struct lookahead *model, size_t rows, size_t inner, size_t cols,
                           struct lookahead_matrix a, struct lookahead_matrix b, double *c);

/* layer->gradient = layer->input^T grad. */
void lookahead_gradient(const struct lookahead *model, const struct lookahead_layer *layer, size_t rows,
                        const double *grad);

/* The optimiser's update of one layer with layer->gradient. */
void lookahead_update(const struct lookahead *model, const struct lookahead_layer *layer, double rate);

/* Everything after Z of layer 1: activations, loss, dL/dZ of each layer, and the update of all layers but the
   first. Returns the mean loss. */
double lookahead_other_layers(struct lookahead *model, const struct lookahead_batch *batch);

#endif
