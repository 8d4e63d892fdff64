#include "tests/mirror.h"

#include <math.h>
#include <stdlib.h>

#include "src/base/rng.h"

void pair_open(struct device_pair *pair, enum gemm_dtype dtype) {
    gpu_open(&pair->gpu, "cublas", &(struct compute_options){.threads = 1});
    support_open(&pair->host, "serial", 1);
    pair->activation_dtype = dtype;
    pair->parameter_dtype = dtype_of_sums(dtype);
    pair->host_ops = pair->host.device.driver->ops(&pair->host.device, dtype);
    pair->gpu_ops = pair->gpu.device.driver->ops(&pair->gpu.device, dtype);
}

void pair_close(struct device_pair *pair) {
    compute_close(&pair->host);
    compute_close(&pair->gpu);
}

struct mirror mirror_alloc(struct device_pair *pair, size_t bytes) {
    struct device *host = &pair->host.device, *gpu = &pair->gpu.device;
    struct mirror mirror = {host->driver->alloc(host, bytes), gpu->driver->alloc(gpu, bytes), bytes};
    assert_true(mirror.host && mirror.gpu);
    return mirror;
}

void mirror_upload(struct device_pair *pair, struct mirror mirror) {
    pair->gpu.device.driver->upload(&pair->gpu.device, mirror.gpu, mirror.host, mirror.bytes);
}

struct mirror mirror_random(struct device_pair *pair, enum gemm_dtype dtype, size_t count, double scale,
                            uint32_t substream) {
    struct mirror mirror = mirror_alloc(pair, count * dtype_size(dtype));
    struct rng rng = rng_open(31, RNG_TEST, substream);
    for (size_t i = 0; i < count; i++) dtype_set(dtype, mirror.host, i, scale * (2 * rng_uniform(&rng) - 1));
    mirror_upload(pair, mirror);
    return mirror;
}

struct mirror mirror_activations(struct device_pair *pair, size_t count, double scale, uint32_t substream) {
    return mirror_random(pair, pair->activation_dtype, count, scale, substream);
}

struct mirror mirror_parameters(struct device_pair *pair, size_t count, double scale, uint32_t substream) {
    return mirror_random(pair, pair->parameter_dtype, count, scale, substream);
}

void mirror_compare(struct device_pair *pair, enum gemm_dtype dtype, struct mirror mirror, double ulps) {
    unsigned char *got = malloc(mirror.bytes + 1);
    const size_t count = mirror.bytes / dtype_size(dtype);
    double largest = 0;
    assert_non_null(got);
    pair->gpu.device.driver->download(&pair->gpu.device, got, mirror.gpu, mirror.bytes);
    assert_status(pair->gpu.device.driver->synchronize(&pair->gpu.device), STATUS_OK);
    for (size_t i = 0; i < count; i++) { /* without fmax, on which gcc 12 for aarch64 crashes */
        const double size = fabs(dtype_get(dtype, mirror.host, i));
        if (size > largest) largest = size;
    }
    for (size_t i = 0; i < count; i++) {
        const double x = dtype_get(dtype, got, i), y = dtype_get(dtype, mirror.host, i);
        if (!(fabs(x - y) <= ulps * dtype_epsilon(dtype) * largest))
            fail_msg("element %zu: %.17g, on the host %.17g", i, x, y);
    }
    free(got);
}

void mirror_free(struct device_pair *pair, struct mirror mirror) {
    pair->host.device.driver->free(&pair->host.device, mirror.host);
    pair->gpu.device.driver->free(&pair->gpu.device, mirror.gpu);
}
