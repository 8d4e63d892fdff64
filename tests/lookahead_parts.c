#include "tests/lookahead_parts.h"

#include <math.h>
#include <string.h>

#include "kernels/activation.h"

void lookahead_add_product(const struct lookahead *model, size_t rows, size_t inner, size_t cols,
                           struct lookahead_matrix a, struct lookahead_matrix b, double *c) {
    for (size_t i = 0; i < rows; i++)
        for (size_t k = 0; k < inner; k++) {
            const double x = a.at[i * a.row + k * a.column], *y = b.at + k * b.row;
            if (x == 0) continue; /* most pixels are 0 */
            for (size_t j = 0; j < cols; j++)
                c[i * cols + j] = lookahead_stored(model, c[i * cols + j] + x * y[j * b.column]);
        }
}

void lookahead_gradient(const struct lookahead *model, const struct lookahead_layer *layer, size_t rows,
                        const double *grad) {
    const size_t length = layer->in + 1;
    memset(layer->gradient, 0, length * layer->out * sizeof *layer->gradient);
    lookahead_add_product(model, length, rows, layer->out, (struct lookahead_matrix){layer->input, 1, length},
                          (struct lookahead_matrix){grad, layer->out, 1}, layer->gradient);
}

/* The rule `sgd` of kernels/ops.h. */
void lookahead_update(const struct lookahead *model, const struct lookahead_layer *layer, double rate) {
    const double momentum = model->config->momentum;
    for (size_t i = 0; i < (layer->in + 1) * layer->out; i++) {
        double *w = &layer->weight[i], *v = layer->velocity ? &layer->velocity[i] : NULL;
        double g = lookahead_stored(model, layer->gradient[i] + model->config->weight_decay * *w);
        if (v) {
            *v = lookahead_stored(model, momentum * *v + g);
            g = model->config->nesterov ? lookahead_stored(model, g + momentum * *v) : *v;
        }
        *w = lookahead_stored(model, *w - rate * g);
    }
}

/* Z of layer l > 0 from that of the layer below. */
static void forward(struct lookahead *model, size_t l, size_t rows) {
    const struct lookahead_layer *below = &model->layer[l - 1], *layer = &model->layer[l];
    const size_t length = layer->in + 1;
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < layer->in; j++)
            layer->input[i * length + j] = lookahead_stored(
                model, activate((enum activation)model->config->activation, below->pre[i * layer->in + j]));
    memset(layer->pre, 0, rows * layer->out * sizeof *layer->pre);
    lookahead_add_product(model, rows, length, layer->out, (struct lookahead_matrix){layer->input, length, 1},
                          (struct lookahead_matrix){layer->weight, layer->out, 1}, layer->pre);
}

/* dL/dZ of the layer below layer l > 0. */
static void backward(struct lookahead *model, size_t l, size_t rows) {
    const struct lookahead_layer *below = &model->layer[l - 1], *layer = &model->layer[l];
    memset(below->grad, 0, rows * layer->in * sizeof *below->grad);
    lookahead_add_product(model, rows, layer->out, layer->in,
                          (struct lookahead_matrix){layer->grad, layer->out, 1},
                          (struct lookahead_matrix){layer->weight, 1, layer->out}, below->grad);
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < layer->in; j++) {
            const double z = below->pre[i * layer->in + j], y = layer->input[i * (layer->in + 1) + j];
            double *grad = &below->grad[i * layer->in + j];
            *grad =
                lookahead_stored(model, *grad * derivative((enum activation)model->config->activation, z, y));
        }
}

/* Softmax cross-entropy of one image: returns the loss; grad = (softmax - target) / rows. */
static double output_row(const struct lookahead *model, const double *logits, size_t classes, size_t label,
                         size_t rows, double *grad) {
    double max = logits[0], sum = 0;
    for (size_t j = 1; j < classes; j++) max = fmax(max, logits[j]);
    for (size_t j = 0; j < classes; j++) sum += exp(logits[j] - max);
    for (size_t j = 0; j < classes; j++)
        grad[j] = lookahead_stored(model, (exp(logits[j] - max) / sum - (j == label)) / (double)rows);
    return log(sum) - (logits[label] - max);
}

double lookahead_other_layers(struct lookahead *model, const struct lookahead_batch *batch) {
    const struct lookahead_layer *last = &model->layer[model->layers - 1];
    double loss = 0;
    for (size_t l = 1; l < model->layers; l++) forward(model, l, batch->rows);
    for (size_t i = 0; i < batch->rows; i++)
        loss += output_row(model, last->pre + i * last->out, last->out, model->data->labels[batch->index[i]],
                           batch->rows, last->grad + i * last->out);
    for (size_t l = model->layers - 1; l > 0; l--) {
        backward(model, l, batch->rows);
        lookahead_gradient(model, &model->layer[l], batch->rows, model->layer[l].grad);
        lookahead_update(model, &model->layer[l], batch->rate);
    }
    return loss / (double)batch->rows;
}
