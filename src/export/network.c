#include "src/export/network.h"

#include <math.h>
#include <stdlib.h>

#include "kernels/activation.h"

#include "src/base/pages.h"
#include "src/base/text.h"

static const struct tensor *find(const struct network *network, const char *prefix, size_t l, bool bias) {
    char name[TENSOR_NAME];
    snprintf(name, sizeof name, "%slayers.%zu.%s", prefix, l, bias ? "bias" : "weight");
    return safetensors_find(&network->checkpoint->file, name);
}

const struct tensor *network_tensor(const struct network *network, size_t l, bool bias) {
    return find(network, network->prefix, l, bias);
}

/* Copies a tensor of this shape (in = 0: a bias) as float32. */
static enum status read_tensor(struct network *network, size_t l, size_t out, size_t in, float **to) {
    const char *path = network->checkpoint->file.path, *part = in ? "weight" : "bias";
    const struct tensor *tensor = network_tensor(network, l, !in);
    if (!tensor || tensor->rank != (in ? 2u : 1u) || tensor->shape[0] != out ||
        (in && tensor->shape[1] != in))
        return status_set(
            STATUS_BAD_DATA,
            "the checkpoint '%s' has no tensor %slayers.%zu.%s with %zu outputs: it is corrupted", path,
            network->prefix, l, part, out);
    const size_t count = tensor_elements(tensor);
    *to = pages_alloc(count * sizeof **to);
    if (!*to) return STATUS_FAILED;
    for (size_t i = 0; i < count; i++) {
        (*to)[i] = (float)dtype_get(tensor->dtype, tensor->data, i);
        if (!isfinite((*to)[i]))
            return status_set(STATUS_BAD_DATA,
                              "the checkpoint '%s' cannot be exported: %s is not finite in float32 (element "
                              "%zu is %g)",
                              path, tensor->name, i, dtype_get(tensor->dtype, tensor->data, i));
    }
    network->rounded |= tensor->dtype == GEMM_F64;
    return STATUS_OK;
}

enum status network_read(struct network *network, const struct checkpoint *checkpoint,
                         const struct config *config, bool average) {
    *network = (struct network){.checkpoint = checkpoint,
                                .layers = config->layers,
                                .depth = config->layers.count - 1,
                                .activation = (enum activation)config->activation,
                                .range = (enum input_range)config->input_range,
                                .side = (size_t)config->input_size,
                                .prefix = average ? "ema." : ""};
    const size_t *width = network->layers.width;
    if (average && !network_tensor(network, 0, false))
        return status_set(
            STATUS_USAGE,
            "the checkpoint '%s' has no moving average of the weights: train with --ema-decay, or "
            "export without --ema",
            checkpoint->file.path);
    if (find(network, "", network->depth, false))
        return status_set(STATUS_BAD_DATA, "the checkpoint '%s' has more layers than its recipe: corrupted",
                          checkpoint->file.path);
    struct image_kind kind;
    enum status status = checkpoint_images(checkpoint, &kind);
    if (!status) network->classes = kind.classes;
    for (size_t l = 0; l < network->depth && !status; l++) {
        status = read_tensor(network, l, width[l + 1], width[l], &network->weight[l]);
        if (!status) status = read_tensor(network, l, width[l + 1], 0, &network->bias[l]);
    }
    return status;
}

void network_free(struct network *network) {
    for (size_t l = 0; l < network->depth; l++) {
        free(network->weight[l]);
        free(network->bias[l]);
    }
    *network = (struct network){0};
}

void network_layer(const struct network *network, size_t l, const float *x, float *z) {
    const size_t in = network->layers.width[l], out = network->layers.width[l + 1];
    for (size_t o = 0; o < out; o++) {
        const float *weight = network->weight[l] + o * in;
        float sum = network->bias[l][o];
#pragma omp simd reduction(+ : sum)
        for (size_t i = 0; i < in; i++) sum += weight[i] * x[i];
        z[o] = sum;
    }
}

void network_input(const struct network *network, const uint8_t *pixels, float *x) {
    const float offset = (float)input_offset(network->range), scale = (float)input_scale(network->range);
    for (size_t i = 0; i < network->layers.width[0]; i++) x[i] = ((float)pixels[i] - offset) * scale;
}

size_t network_parameters(const struct network *network) {
    size_t sum = 0;
    for (size_t l = 0; l < network->depth; l++)
        sum += (network->layers.width[l] + 1) * network->layers.width[l + 1];
    return sum;
}

size_t network_widest(const struct network *network, size_t first, size_t last) {
    size_t widest = 1;
    for (size_t i = first; i < last; i++)
        if (network->layers.width[i] > widest) widest = network->layers.width[i];
    return widest;
}

void network_describe(const struct network *network, char *text, size_t size) {
    text[0] = '\0';
    for (size_t i = 0; i < network->layers.count; i++)
        text_append(text, size, "%s%zu", i ? "-" : "", network->layers.width[i]);
    text_append(text, size, ", %s, x = %s", activation_name(network->activation),
                network->range == INPUT_SIGNED ? "pixel / 127.5 - 1" : "pixel / 255");
    if (network->side) text_append(text, size, ", images resized to %zux%zu", network->side, network->side);
}
