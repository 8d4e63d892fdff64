#include "kernels/host/dropout.h"

void dropout_bits(const struct dropout *dropout, size_t run, uint16_t bits[DROPOUT_RUN]) {
    uint32_t words[4][DROPOUT_LANES];
    const uint64_t seed = dropout->seed, step = dropout->step->number;
    const uint32_t layer = dropout->layer;
#pragma omp simd
    for (size_t l = 0; l < DROPOUT_LANES; l++) {
        uint32_t word[4];
        dropout_words(seed, layer, step, run * DROPOUT_LANES + l, word);
        words[0][l] = word[0];
        words[1][l] = word[1];
        words[2][l] = word[2];
        words[3][l] = word[3];
    }
    for (size_t l = 0; l < DROPOUT_LANES; l++)
        for (size_t w = 0; w < 4; w++) {
            bits[l * DROPOUT_BLOCK + 2 * w] = (uint16_t)words[w][l];
            bits[l * DROPOUT_BLOCK + 2 * w + 1] = (uint16_t)(words[w][l] >> 16);
        }
}
