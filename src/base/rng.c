#include "src/base/rng.h"

#include <math.h>

void rng_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0;
        uint64_t p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

struct rng rng_open(uint64_t seed, enum rng_stream stream, uint32_t substream) {
    struct rng rng = {.key = {(uint32_t)seed, (uint32_t)(seed >> 32)},
                      .counter = {0, 0, substream, (uint32_t)stream},
                      .used = 4};
    return rng;
}

uint32_t rng_u32(struct rng *rng) {
    if (rng->used == 4) {
        rng_philox(rng->counter, rng->key, rng->block);
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
