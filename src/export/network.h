/* A trained network in float32, ready to be written in the format of another program. Layer l computes
   Z = W x + b and Y = act(Z); the last layer has no activation: its Z are the logits. */
#ifndef TESSERA_EXPORT_NETWORK_H
#define TESSERA_EXPORT_NETWORK_H

#include "src/nn/checkpoint.h"

struct network {
    const struct checkpoint *checkpoint; /* not owned */
    struct layer_list layers;            /* widths */
    size_t depth;                        /* layers of weights */
    enum activation activation;
    enum input_range range; /* of the input, for pixels from 0 to 255 */
    struct class_names classes;
    size_t side;        /* images are resized to squares of this side before; 0: they are not */
    const char *prefix; /* of the tensors' names: "", or "ema." */
    bool rounded;       /* from float64 */
    float *weight[PROFILE_MAX_LAYERS], *bias[PROFILE_MAX_LAYERS]; /* [out][in], [out]; owned */
};

/* Reads the weights or, with `average`, their moving average. STATUS_USAGE if there is no average;
   STATUS_BAD_DATA if a tensor is missing, has another shape or holds a value that is not finite in float32,
   or if the names of the classes are not valid.
   Call network_free also after a failure. */
enum status network_read(struct network *network, const struct checkpoint *checkpoint,
                         const struct config *config, bool average);
void network_free(struct network *network);

/* The tensor of the file with the weights or the bias of layer l. */
const struct tensor *network_tensor(const struct network *network, size_t l, bool bias);

/* z[out] = W x + b of layer l. */
void network_layer(const struct network *network, size_t l, const float *x, float *z);

/* Computes x[features] from the pixels of an image. */
void network_input(const struct network *network, const uint8_t *pixels, float *x);

/* Weights and biases. */
size_t network_parameters(const struct network *network);

/* Of layers first to last - 1 of `layers`, the input being 0. */
size_t network_widest(const struct network *network, size_t first, size_t last);

/* "784-128-10, relu, x = pixel / 255" */
void network_describe(const struct network *network, char *text, size_t size);

#endif
