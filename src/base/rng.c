#include "src/base/rng.h"

#include <math.h>

struct rng rng_open(uint64_t seed, enum rng_stream stream, uint32_t substream) {
    struct rng rng = {.key = {(uint32_t)seed, (uint32_t)(seed >> 32)},
                      .counter = {0, 0, substream, (uint32_t)stream},
                      .used = 4};
    return rng;
}

struct rng rng_open_at(uint64_t seed, enum rng_stream stream, uint32_t substream, uint64_t words) {
    struct rng rng = rng_open(seed, stream, substream);
    const uint64_t block = words / 4;
    rng.counter[0] = (uint32_t)block;
    rng.counter[1] = (uint32_t)(block >> 32);
    for (uint64_t i = 0; i < words % 4; i++) rng_u32(&rng);
    return rng;
}

uint32_t rng_u32(struct rng *rng) {
    if (rng->used == 4) {
        philox4x32(rng->counter, rng->key, rng->block);
        if (++rng->counter[0] == 0) rng->counter[1]++;
        rng->used = 0;
    }
    return rng->block[rng->used++];
}

double rng_uniform(struct rng *rng) {
    uint64_t high = rng_u32(rng) >> 5, low = rng_u32(rng) >> 6;
    return (double)(high << 26 | low) * 0x1p-53;
}

double rng_normal(struct rng *rng) {
    double radius = sqrt(-2.0 * log1p(-rng_uniform(rng)));
    double angle = 6.283185307179586476925 * rng_uniform(rng);
    return radius * cos(angle);
}

uint32_t rng_below(struct rng *rng, uint32_t bound) {
    uint64_t product = (uint64_t)rng_u32(rng) * bound;
    if ((uint32_t)product < bound) {
        uint32_t threshold = (0u - bound) % bound;
        while ((uint32_t)product < threshold) product = (uint64_t)rng_u32(rng) * bound;
    }
    return (uint32_t)(product >> 32);
}

void rng_permutation(struct rng *rng, uint32_t *out, size_t count) {
    for (size_t i = 0; i < count; i++) out[i] = (uint32_t)i;
    for (size_t i = count; i > 1; i--) {
        size_t j = rng_below(rng, (uint32_t)i);
        uint32_t swap = out[i - 1];
        out[i - 1] = out[j];
        out[j] = swap;
    }
}
