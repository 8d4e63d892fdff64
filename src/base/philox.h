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

/* The counter becomes the output. */
PHILOX_FUNCTION void philox(uint32_t counter[4], uint32_t key0, uint32_t key1) {
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ key0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ key1;
        c3 = (uint32_t)p0;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    counter[0] = c0;
    counter[1] = c1;
    counter[2] = c2;
    counter[3] = c3;
}

#endif
