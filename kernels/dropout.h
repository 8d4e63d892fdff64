/* Which elements dropout drops, for both devices: a pure function of seed, step, layer and element, so that
   no mask is kept, and every device, engine and number of threads has the same. */
#ifndef TESSERA_KERNELS_DROPOUT_H
#define TESSERA_KERNELS_DROPOUT_H

#include "kernels/ops.h"
#include "src/base/philox.h"

enum { DROPOUT_BLOCK = 8 }; /* elements that one block of random words decides on */

/* The counter of a block, whose key is the seed: 16 random bits for each of the elements DROPOUT_BLOCK block
   .. DROPOUT_BLOCK block + 7: element e has the low half of word e / 2 if e is even, else the high half. One
   below the threshold is dropped. */
ANYWHERE void dropout_counter(uint32_t layer, uint64_t step, uint64_t block, uint32_t word[4]) {
    word[0] = (uint32_t)block;
    word[1] = (uint32_t)(block >> 32) << 16 | (uint32_t)(step >> 32);
    word[2] = (uint32_t)step;
    word[3] = layer << 8 | RNG_DROPOUT;
}

/* The rate in 65536ths. */
static inline uint32_t dropout_threshold(double rate) {
    return (uint32_t)(rate * 65536 + 0.5);
}

/* What those that stay are multiplied by: 1 / (1 - rate), of the rate as it was rounded. */
static inline double dropout_scale(double rate) {
    return 65536.0 / (65536 - dropout_threshold(rate));
}

#endif
