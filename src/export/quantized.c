#include "src/export/quantized.h"

#include <math.h>
#include <stdlib.h>

#include "kernels/activation.h"
#include "src/base/pages.h"

enum { LEVELS = 256, MOST_WEIGHT = 127 };
static const double MOST_BIAS = 1 << 29; /* without the part of the offset */
/* bias, offset and products of a layer together stay below 2^31 */
static const size_t MOST_INPUTS = ((1u << 31) - (1u << 29)) / (2 * MOST_WEIGHT * (LEVELS - 1));

/* What a byte stands for: scale (u - offset). */
struct byte_scale {
    double scale, offset;
};

struct range {
    double low, high;
};

static struct byte_scale scale_of(struct range range, int levels) {
    const double scale = (range.high - range.low) / (levels - 1);
    return (struct byte_scale){scale, -range.low / scale};
}

/* --- ranges --- */

/* Of the values before the activation in each hidden layer, 0 included, over all images. */
static void calibrate(const struct network *network, const uint8_t *images, size_t count,
                      struct range *ranges, float *x, float *z) {
    for (size_t l = 0; l < network->depth; l++) ranges[l] = (struct range){0, 0};
    for (size_t i = 0; i < count; i++) {
        network_input(network, images + i * network->layers.width[0], x);
        for (size_t l = 0; l + 1 < network->depth; l++) {
            network_layer(network, l, x, z);
            for (size_t o = 0; o < network->layers.width[l + 1]; o++) {
                ranges[l].low = fmin(ranges[l].low, (double)z[o]);
                ranges[l].high = fmax(ranges[l].high, (double)z[o]);
                x[o] = activate(network->activation, z[o]);
            }
        }
    }
}

static bool piecewise_linear(enum activation activation) {
    return activation == ACTIVATION_NONE || activation == ACTIVATION_RELU;
}

/* Cuts off the ends in which the activation stays within `tolerance` of its value at the end. */
static struct range without_saturation(enum activation activation, struct range range, double tolerance) {
    const double step = (range.high - range.low) / QUANTIZED_TABLE, low = activate(activation, range.low),
                 high = activate(activation, range.high);
    while (range.low + step < 0 && fabs(activate(activation, range.low + step) - low) < tolerance)
        range.low += step;
    while (range.high - step > 0 && fabs(activate(activation, range.high - step) - high) < tolerance)
        range.high -= step;
    return range;
}

/* The outputs for `range`, 0 included. */
static struct range output_range(enum activation activation, struct range range) {
    struct range output = {0, 0};
    for (int i = 0; i < QUANTIZED_TABLE; i++) {
        const double y =
            activate(activation, range.low + (range.high - range.low) * i / (QUANTIZED_TABLE - 1));
        output.low = fmin(output.low, y);
        output.high = fmax(output.high, y);
    }
    return output;
}

/* --- quantisation --- */

/* Sets levels and table of a hidden layer. *pre receives what an index stands for; returns the same of the
   output. */
static struct byte_scale make_activation(struct quantized_layer *layer, enum activation activation,
                                         struct range range, struct byte_scale *pre) {
    if (activation == ACTIVATION_RELU) range.low = 0;
    if (!(range.high > range.low)) range.high = range.low + 1; /* all outputs are 0 */
    layer->levels = LEVELS;
    *pre = scale_of(range, LEVELS);
    if (piecewise_linear(activation)) return *pre;

    const struct range wide = output_range(activation, range);
    range = without_saturation(activation, range, (wide.high - wide.low) / (LEVELS - 1) / 2);
    const struct byte_scale output = scale_of(output_range(activation, range), LEVELS);
    layer->levels = QUANTIZED_TABLE;
    *pre = scale_of(range, QUANTIZED_TABLE);
    for (int i = 0; i < QUANTIZED_TABLE; i++) {
        const double y = activate(activation, pre->scale * (i - pre->offset));
        layer->table[i] = (uint8_t)lround(fmin(fmax(y / output.scale + output.offset, 0), LEVELS - 1));
    }
    return output;
}

/* The scale with which neither weights nor bias of output o overflow. */
static double weight_scale(const struct network *network, size_t l, size_t o, double low,
                           double input_scale) {
    const size_t in = network->layers.width[l];
    const float *weight = network->weight[l] + o * in;
    double most = 0;
    for (size_t i = 0; i < in; i++) /* GCC 12 for aarch64 crashes on fmax here */
        if (fabs((double)weight[i]) > most) most = fabs((double)weight[i]);
    return fmax(most / MOST_WEIGHT, fabs((double)network->bias[l][o] - low) / (input_scale * MOST_BIAS));
}

/* Fills row o of weights and bias. */
static void quantize_row(struct quantized_layer *layer, size_t o, const float *weight, double bias,
                         double scale, struct byte_scale input) {
    int64_t sum = 0;
    for (size_t i = 0; i < layer->in; i++) {
        const long q = lround((double)weight[i] / scale);
        layer->weight[o * layer->in + i] = (int8_t)q;
        sum += q;
    }
    layer->bias[o] = (int32_t)lround(bias / (scale * input.scale) - input.offset * (double)sum);
}

/* `pre`: what an index stands for; NULL for the last layer. Returns the largest scale of an output. */
static double quantize_layer(struct quantized_layer *layer, const struct network *network, size_t l,
                             struct byte_scale input, const struct byte_scale *pre) {
    const double low = pre ? -pre->scale * pre->offset : 0;
    double largest = 0;
    int exponent;
    for (size_t o = 0; o < layer->out; o++)
        largest = fmax(largest, weight_scale(network, l, o, low, input.scale));
    if (!(largest > 0)) largest = 1; /* all weights are 0 */
    if (pre) frexp(largest * input.scale / pre->scale, &exponent);
    if (pre) layer->shift = exponent > 30 ? 1 : exponent < -31 ? 62 : 31 - exponent;
    for (size_t o = 0; o < layer->out; o++) {
        const double own = pre ? weight_scale(network, l, o, low, input.scale) : largest;
        const double scale = own > 0 ? own : largest;
        quantize_row(layer, o, network->weight[l] + o * layer->in, (double)network->bias[l][o] - low, scale,
                     input);
        if (!pre) continue;
        const double multiplier = ldexp(scale * input.scale / pre->scale, layer->shift);
        layer->multiplier[o] = (int32_t)lround(fmin(multiplier, INT32_MAX));
    }
    return largest;
}

static enum status allocate(struct quantized_layer *layer, size_t in, size_t out, bool hidden, bool table) {
    *layer = (struct quantized_layer){.in = in, .out = out};
    layer->weight = pages_alloc(in * out);
    layer->bias = pages_alloc(out * sizeof *layer->bias);
    layer->multiplier = hidden ? pages_alloc(out * sizeof *layer->multiplier) : NULL;
    layer->table = hidden && table ? pages_alloc(QUANTIZED_TABLE) : NULL;
    const bool ok =
        layer->weight && layer->bias && (!hidden || layer->multiplier) && (!hidden || !table || layer->table);
    return ok ? STATUS_OK : STATUS_FAILED;
}

static enum status check_widths(const struct network *network) {
    const size_t widest = network_widest(network, 0, network->depth);
    if (widest <= MOST_INPUTS) return STATUS_OK;
    return status_set(
        STATUS_FAILED,
        "--int8 adds in 32 bits, which is enough for layers of %zu inputs; this network has one of %zu",
        MOST_INPUTS, widest);
}

enum status quantized_make(struct quantized *quantized, const struct network *network, const uint8_t *images,
                           size_t count) {
    struct range ranges[PROFILE_MAX_LAYERS];
    const size_t depth = network->depth, widest = network_widest(network, 0, depth + 1);
    *quantized = (struct quantized){.depth = depth};
    enum status status = check_widths(network);
    float *x = status ? NULL : pages_alloc(2 * widest * sizeof *x);
    if (!x) return STATUS_FAILED;
    calibrate(network, images, count, ranges, x, x + widest);
    free(x);
    struct byte_scale input = {input_scale(network->range), input_offset(network->range)};
    for (size_t l = 0; l < depth && !status; l++) {
        struct quantized_layer *layer = &quantized->layer[l];
        const bool hidden = l + 1 < depth;
        struct byte_scale pre, output = {0, 0};
        status = allocate(layer, network->layers.width[l], network->layers.width[l + 1], hidden,
                          !piecewise_linear(network->activation));
        if (status) break;
        if (hidden) output = make_activation(layer, network->activation, ranges[l], &pre);
        quantized->logit_scale = quantize_layer(layer, network, l, input, hidden ? &pre : NULL) * input.scale;
        input = output;
    }
    return status;
}

void quantized_free(struct quantized *quantized) {
    for (size_t l = 0; l < quantized->depth; l++) {
        struct quantized_layer *layer = &quantized->layer[l];
        free(layer->weight);
        free(layer->bias);
        free(layer->multiplier);
        free(layer->table);
    }
    *quantized = (struct quantized){0};
}
