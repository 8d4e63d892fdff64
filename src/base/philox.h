/* Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011),
   for C and CUDA: 128 random bits as a pure function of a counter and a key. */
#ifndef TESSERA_BASE_PHILOX_H
#define TESSERA_BASE_PHILOX_H

#include <stdint.h>

/* Qualifies functions that host and device code call. */
#ifdef __CUDACC__
#    define HOST_DEVICE static inline __host__ __device__
#else
#    define HOST_DEVICE static inline
#endif

/* What the numbers are used for: the last word of the counter. Streams of one seed are independent. */
enum rng_stream {
    RNG_INIT = 1,
    RNG_SHUFFLE = 2,
    RNG_SYNTHETIC = 3,
    RNG_TEST = 4,
    RNG_AUGMENT = 5,
    RNG_DROPOUT = 6,
    RNG_CLUSTER = 7,
    RNG_POINTS = 8
};

enum { PHILOX_ROUNDS = 10 };

/* One round with the key (k0, k1). */
HOST_DEVICE void philox_round(uint32_t *c0, uint32_t *c1, uint32_t *c2, uint32_t *c3, uint32_t k0,
                              uint32_t k1) {
    const uint64_t p0 = (uint64_t)0xD2511F53u * *c0;
    const uint64_t p1 = (uint64_t)0xCD9E8D57u * *c2;
    *c0 = (uint32_t)(p1 >> 32) ^ *c1 ^ k0;
    *c1 = (uint32_t)p1;
    *c2 = (uint32_t)(p0 >> 32) ^ *c3 ^ k1;
    *c3 = (uint32_t)p0;
}

HOST_DEVICE void philox_next_key(uint32_t *k0, uint32_t *k1) {
    *k0 += 0x9E3779B9u;
    *k1 += 0xBB67AE85u;
}

/* One block of 128 random bits. */
HOST_DEVICE void philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        philox_round(&c0, &c1, &c2, &c3, k0, k1);
        philox_next_key(&k0, &k1);
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

#endif
