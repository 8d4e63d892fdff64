#include "kernels/host/ops/dropout.h"

void dropout_bits(const struct dropout *dropout, size_t run, uint16_t bits[DROPOUT_RUN]) {
    uint32_t words[4][DROPOUT_LANES], block[4], transposed[4 * DROPOUT_LANES];
    uint32_t key0 = (uint32_t)dropout->seed, key1 = (uint32_t)(dropout->seed >> 32);
    for (size_t l = 0; l < DROPOUT_LANES; l++) {
        dropout_counter(dropout->layer, dropout->step->number, run * DROPOUT_LANES + l, block);
        for (size_t w = 0; w < 4; w++) words[w][l] = block[w];
    }
    for (int round = 0; round < PHILOX_ROUNDS; round++) {
#pragma omp simd
        for (size_t l = 0; l < DROPOUT_LANES; l++)
            philox_round(&words[0][l], &words[1][l], &words[2][l], &words[3][l], key0, key1);
        philox_next_key(&key0, &key1);
    }
    for (size_t l = 0; l < DROPOUT_LANES; l++)
        for (size_t w = 0; w < 4; w++) transposed[4 * l + w] = words[w][l];
#pragma omp simd
    for (size_t w = 0; w < 4 * DROPOUT_LANES; w++) {
        bits[2 * w] = (uint16_t)transposed[w];
        bits[2 * w + 1] = (uint16_t)(transposed[w] >> 16);
    }
}
