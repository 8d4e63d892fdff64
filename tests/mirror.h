/* The same data on the host and on a GPU, so that an op can be called on both and its results compared. */
#ifndef TESSERA_TESTS_MIRROR_H
#define TESSERA_TESTS_MIRROR_H

#include "tests/gpu.h"

struct pair {
    struct compute host, gpu;
    const struct ops *host_ops, *gpu_ops;
    enum gemm_dtype activation_dtype, parameter_dtype;
};

/* Skips the test without a GPU. */
void pair_open(struct pair *pair, enum gemm_dtype dtype);
void pair_close(struct pair *pair);

/* A buffer on both devices with the same content. */
struct mirror {
    void *host, *gpu;
    size_t bytes;
};

struct mirror mirror_alloc(struct pair *pair, size_t bytes); /* zeros */
void mirror_free(struct pair *pair, struct mirror mirror);

/* The host's content to the GPU. */
void mirror_upload(struct pair *pair, struct mirror mirror);

/* Uniform in +-scale; another substream, other numbers. mirror_activations: activations and their gradients;
   mirror_parameters: parameters. */
struct mirror mirror_random(struct pair *pair, enum gemm_dtype dtype, size_t count, double scale,
                            uint32_t substream);
struct mirror mirror_activations(struct pair *pair, size_t count, double scale, uint32_t substream);
struct mirror mirror_parameters(struct pair *pair, size_t count, double scale, uint32_t substream);

/* Both contents are equal within `ulps` roundings of numbers up to the largest. */
void mirror_compare(struct pair *pair, enum gemm_dtype dtype, struct mirror mirror, double ulps);

#endif
