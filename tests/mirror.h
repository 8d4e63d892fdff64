/* Buffers with the same content on the host and on a GPU, to compare the results of an op on both. */
#ifndef TESSERA_TESTS_MIRROR_H
#define TESSERA_TESTS_MIRROR_H

#include "tests/gpu.h"

struct device_pair {
    struct compute host, gpu;
    const struct ops *host_ops, *gpu_ops;
    enum gemm_dtype activation_dtype, parameter_dtype;
};

/* Skips the test without a GPU. */
void pair_open(struct device_pair *pair, enum gemm_dtype dtype);
void pair_close(struct device_pair *pair);

/* A buffer on both devices with the same content. */
struct mirror {
    void *host, *gpu;
    size_t bytes;
};

struct mirror mirror_alloc(struct device_pair *pair, size_t bytes); /* zeros */
void mirror_free(struct device_pair *pair, struct mirror mirror);

/* Copies the host's content to the GPU. */
void mirror_upload(struct device_pair *pair, struct mirror mirror);

/* Uniform random numbers in +-scale, different for each substream: in any dtype, in that of activations and
   their gradients, or in that of parameters. */
struct mirror mirror_random(struct device_pair *pair, enum gemm_dtype dtype, size_t count, double scale,
                            uint32_t substream);
struct mirror mirror_activations(struct device_pair *pair, size_t count, double scale, uint32_t substream);
struct mirror mirror_parameters(struct device_pair *pair, size_t count, double scale, uint32_t substream);

/* Asserts that both contents are equal within `ulps` epsilons of the largest element. */
void mirror_compare(struct device_pair *pair, enum gemm_dtype dtype, struct mirror mirror, double ulps);

#endif
