/* A network in int8, for integer arithmetic. Between layers a value is a byte u that stands for
   scale (u - offset), with real scale and offset; pixels already are. Weights are symmetric, q scale, with a
   scale of its own for each output of a hidden layer and one for the last layer, so that its sums can be
   compared (Jacob et al. 2018, arXiv 1712.05877, sections 2.1 to 2.4). With int32 sums,
     sum[o]   = bias[o] + sum over i of weight[o][i] u[i]
     index    = max(0, min(levels - 1, (sum[o] multiplier[o] + 2^(shift-1)) >> shift))     (hidden layers)
     output u = table[index], or index itself if the activation is piecewise linear
     logit    = sum[o] logit_scale                                                        (last layer)
   The ranges of the hidden layers are those of given images. */
#ifndef TESSERA_EXPORT_QUANTIZED_H
#define TESSERA_EXPORT_QUANTIZED_H

#include "src/export/network.h"

enum { QUANTIZED_TABLE = 1024 };

struct quantized_layer {
    size_t in, out;
    int8_t *weight;      /* [out][in] */
    int32_t *bias;       /* [out] */
    int32_t *multiplier; /* [out]; NULL in the last layer */
    int shift, levels;
    uint8_t *table; /* [levels], or NULL */
};

struct quantized {
    size_t depth;
    struct quantized_layer layer[PROFILE_MAX_LAYERS];
    double logit_scale;
};

/* Quantises the network; `images` [count][features] set the ranges. STATUS_FAILED if a layer has so many
   inputs that its sums might exceed int32. Call quantized_free also after a failure. */
enum status quantized_make(struct quantized *quantized, const struct network *network, const uint8_t *images,
                           size_t count);
void quantized_free(struct quantized *quantized);

/* Returns the class of an image and fills scores [classes], as the C file does. `u` has room for two layers
   of `widest` bytes. */
size_t quantized_run(const struct quantized *quantized, const uint8_t *pixels, int32_t *scores, uint8_t *u,
                     size_t widest);

/* How the two classify `count` images with these labels. */
struct quantized_accuracy {
    size_t correct, correct_float, different; /* different: the two networks disagree */
};
enum status quantized_measure(const struct quantized *quantized, const struct network *network,
                              const uint8_t *images, const uint8_t *labels, size_t count,
                              struct quantized_accuracy *accuracy);

#endif
