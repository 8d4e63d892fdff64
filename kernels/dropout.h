/* The dropout mask: a pure function of seed, step, layer and element. It is not stored, and it is the same on
   every device, in every engine and for any number of threads. */
#ifndef TESSERA_KERNELS_DROPOUT_H
#define TESSERA_KERNELS_DROPOUT_H

#include "kernels/ops.h"
#include "src/base/philox.h"

enum { DROPOUT_BLOCK = 8 }; /* elements per Philox block */

/* The Philox counter of a block; the key is the seed. It yields 16 random bits for each of the elements
   DROPOUT_BLOCK block .. DROPOUT_BLOCK block + 7: the low half of word e / 2 if e is even, else the high
   half. Elements whose bits are below the threshold are dropped. */
HOST_DEVICE void dropout_counter(uint32_t layer, uint64_t step, uint64_t block, uint32_t word[4]) {
    word[0] = (uint32_t)block;
    word[1] = (uint32_t)(block >> 32) << 16 | (uint32_t)(step >> 32);
    word[2] = (uint32_t)step;
    word[3] = layer << 8 | RNG_DROPOUT;
}

/* The rate in 65536ths. */
static inline uint32_t dropout_threshold(double rate) {
    return (uint32_t)(rate * 65536 + 0.5);
}

/* The factor of the elements that are not dropped: 1 / (1 - rate), with the rounded rate. */
static inline double dropout_scale(double rate) {
    return 65536.0 / (65536 - dropout_threshold(rate));
}

#endif
