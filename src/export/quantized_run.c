/* Runs a quantised network, with the arithmetic of the C file that c_source.c writes. */
#include <stdlib.h>

#include "kernels/activation.h"
#include "src/base/pages.h"
#include "src/export/quantized.h"

static uint8_t output_of(const struct quantized_layer *layer, size_t o, int32_t sum) {
    const int64_t product = (int64_t)sum * layer->multiplier[o] + ((int64_t)1 << (layer->shift - 1));
    const int64_t shifted = product < 0 ? 0 : product >> layer->shift;
    const size_t index = shifted < layer->levels ? (size_t)shifted : (size_t)layer->levels - 1;
    return layer->table ? layer->table[index] : (uint8_t)index;
}

size_t quantized_run(const struct quantized *quantized, const uint8_t *pixels, int32_t *scores, uint8_t *u,
                     size_t widest) {
    const uint8_t *from = pixels;
    size_t best = 0;
    for (size_t l = 0; l < quantized->depth; l++) {
        const struct quantized_layer *layer = &quantized->layer[l];
        uint8_t *to = u + l % 2 * widest;
        for (size_t o = 0; o < layer->out; o++) {
            const int8_t *weight = layer->weight + o * layer->in;
            int32_t sum = layer->bias[o];
            for (size_t i = 0; i < layer->in; i++) sum += weight[i] * from[i];
            if (layer->multiplier) {
                to[o] = output_of(layer, o, sum);
                continue;
            }
            scores[o] = sum;
            if (sum > scores[best]) best = o;
        }
        from = to;
    }
    return best;
}

/* The class by float32; x has room for two layers of `widest`. */
static size_t float_class(const struct network *network, const uint8_t *pixels, float *x, size_t widest) {
    size_t best = 0;
    float *z = x + widest;
    network_input(network, pixels, x);
    for (size_t l = 0; l < network->depth; l++) {
        network_layer(network, l, x, z);
        if (l + 1 < network->depth)
            for (size_t o = 0; o < network->layers.width[l + 1]; o++)
                x[o] = activate(network->activation, z[o]);
    }
    for (size_t o = 1; o < network->layers.width[network->depth]; o++)
        if (z[o] > z[best]) best = o;
    return best;
}

enum status quantized_measure(const struct quantized *quantized, const struct network *network,
                              const uint8_t *images, const uint8_t *labels, size_t count,
                              struct quantized_accuracy *accuracy) {
    const size_t features = network->layers.width[0], widest = network_widest(network, 0, network->depth + 1);
    uint8_t *u = pages_alloc(2 * widest);
    int32_t *scores = pages_alloc(widest * sizeof *scores);
    float *x = pages_alloc(2 * widest * sizeof *x);
    const bool room = u && scores && x;
    *accuracy = (struct quantized_accuracy){0};
    for (size_t i = 0; room && i < count; i++) {
        const size_t integer = quantized_run(quantized, images + i * features, scores, u, widest),
                     real = float_class(network, images + i * features, x, widest);
        accuracy->correct += integer == labels[i];
        accuracy->correct_float += real == labels[i];
        accuracy->different += integer != real;
    }
    free(u);
    free(scores);
    free(x);
    return room ? STATUS_OK : STATUS_FAILED;
}
