#include "tests/twins.h"

#include <math.h>
#include <stdlib.h>

#include "src/base/rng.h"

void pair_open(struct pair *pair, enum gemm_dtype dtype) {
    gpu_open(&pair->gpu, "cublas", &(struct compute_options){.threads = 1});
    support_open(&pair->host, "serial", 1);
    pair->stored = dtype;
    pair->real = dtype == GEMM_BF16 ? GEMM_F32 : dtype;
    pair->host_ops = pair->host.device.driver->ops(&pair->host.device, dtype);
    pair->gpu_ops = pair->gpu.device.driver->ops(&pair->gpu.device, dtype);
}

void pair_close(struct pair *pair) {
    compute_close(&pair->host);
    compute_close(&pair->gpu);
}

struct twin twin_make(struct pair *pair, size_t bytes) {
    struct device *host = &pair->host.device, *gpu = &pair->gpu.device;
    struct twin twin = {host->driver->alloc(host, bytes), gpu->driver->alloc(gpu, bytes), bytes};
    assert_true(twin.host && twin.gpu);
    return twin;
}

void twin_send(struct pair *pair, struct twin twin) {
    pair->gpu.device.driver->upload(&pair->gpu.device, twin.gpu, twin.host, twin.bytes);
}

struct twin twin_random(struct pair *pair, enum gemm_dtype dtype, size_t count, double scale,
                        uint32_t substream) {
    struct twin twin = twin_make(pair, count * dtype_size(dtype));
    struct rng rng = rng_open(31, RNG_TEST, substream);
    for (size_t i = 0; i < count; i++) dtype_set(dtype, twin.host, i, scale * (2 * rng_uniform(&rng) - 1));
    twin_send(pair, twin);
    return twin;
}

struct twin twin_stored(struct pair *pair, size_t count, double scale, uint32_t substream) {
    return twin_random(pair, pair->stored, count, scale, substream);
}

struct twin twin_reals(struct pair *pair, size_t count, double scale, uint32_t substream) {
    return twin_random(pair, pair->real, count, scale, substream);
}

void twin_compare(struct pair *pair, enum gemm_dtype dtype, struct twin twin, double ulps) {
    unsigned char *got = malloc(twin.bytes + 1);
    const size_t count = twin.bytes / dtype_size(dtype);
    double largest = 0;
    assert_non_null(got);
    pair->gpu.device.driver->download(&pair->gpu.device, got, twin.gpu, twin.bytes);
    assert_status(pair->gpu.device.driver->synchronize(&pair->gpu.device), STATUS_OK);
    for (size_t i = 0; i < count; i++) largest = fmax(largest, fabs(dtype_get(dtype, twin.host, i)));
    for (size_t i = 0; i < count; i++) {
        const double x = dtype_get(dtype, got, i), y = dtype_get(dtype, twin.host, i);
        if (!(fabs(x - y) <= ulps * dtype_epsilon(dtype) * largest))
            fail_msg("element %zu: %.17g, on the host %.17g", i, x, y);
    }
    free(got);
}

void twin_free(struct pair *pair, struct twin twin) {
    pair->host.device.driver->free(&pair->host.device, twin.host);
    pair->gpu.device.driver->free(&pair->gpu.device, twin.gpu);
}
