/* The same data on the host and on a GPU, so that an op can be called on both and its results compared. */
#ifndef TESSERA_TESTS_TWINS_H
#define TESSERA_TESTS_TWINS_H

#include "tests/gpu.h"

struct pair {
    struct compute host, gpu;
    const struct ops *host_ops, *gpu_ops;
    enum gemm_dtype stored, real; /* of activations; of parameters */
};

/* Skips the test without a GPU. */
void pair_open(struct pair *pair, enum gemm_dtype dtype);
void pair_close(struct pair *pair);

/* A buffer on both devices with the same content. */
struct twin {
    void *host, *gpu;
    size_t bytes;
};

struct twin twin_make(struct pair *pair, size_t bytes); /* zeros */
void twin_free(struct pair *pair, struct twin twin);

/* The host's content to the GPU. */
void twin_send(struct pair *pair, struct twin twin);

/* Uniform in +-scale; another substream, other numbers. twin_stored: activations and their gradients;
   twin_reals: parameters. */
struct twin twin_random(struct pair *pair, enum gemm_dtype dtype, size_t count, double scale,
                        uint32_t substream);
struct twin twin_stored(struct pair *pair, size_t count, double scale, uint32_t substream);
struct twin twin_reals(struct pair *pair, size_t count, double scale, uint32_t substream);

/* Both contents are equal within `ulps` roundings of numbers up to the largest. */
void twin_compare(struct pair *pair, enum gemm_dtype dtype, struct twin twin, double ulps);

#endif
