/* Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), for the host and for
   CUDA: four random words from a counter and a key. No state, so every element of anything can draw its own. */
#ifndef TESSERA_BASE_PHILOX_H
#define TESSERA_BASE_PHILOX_H

#include <stdint.h>

#ifdef __CUDACC__
#    define PHILOX_FUNCTION __host__ __device__ static inline
#else
#    define PHILOX_FUNCTION static inline
#endif

enum { PHILOX_ROUNDS = 10 };

/* One round, with the keys of that round. */
PHILOX_FUNCTION void philox_round(uint32_t *c0, uint32_t *c1, uint32_t *c2, uint32_t *c3, uint32_t key0,
                                  uint32_t key1) {
    const uint64_t p0 = (uint64_t)0xD2511F53u * *c0, p1 = (uint64_t)0xCD9E8D57u * *c2;
    *c0 = (uint32_t)(p1 >> 32) ^ *c1 ^ key0;
    *c1 = (uint32_t)p1;
    *c2 = (uint32_t)(p0 >> 32) ^ *c3 ^ key1;
    *c3 = (uint32_t)p0;
}

PHILOX_FUNCTION uint32_t philox_key0(uint32_t key, int round) {
    return key + (uint32_t)round * 0x9E3779B9u;
}

PHILOX_FUNCTION uint32_t philox_key1(uint32_t key, int round) {
    return key + (uint32_t)round * 0xBB67AE85u;
}

/* The counter becomes the output. */
PHILOX_FUNCTION void philox(uint32_t c[4], uint32_t key0, uint32_t key1) {
    for (int round = 0; round < PHILOX_ROUNDS; round++)
        philox_round(&c[0], &c[1], &c[2], &c[3], philox_key0(key0, round), philox_key1(key1, round));
}

#endif
