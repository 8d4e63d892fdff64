/* bfloat16 on the host: the upper half of a float32. */
#ifndef TESSERA_KERNELS_BF16_H
#define TESSERA_KERNELS_BF16_H

#include <stdint.h>
#include <string.h>

static inline float bf16_to_float(uint16_t value) {
    const uint32_t bits = (uint32_t)value << 16;
    float result;
    memcpy(&result, &bits, sizeof result);
    return result;
}

/* Rounds to nearest, ties to even; NaN stays NaN. */
static inline uint16_t bf16_from_float(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    const uint32_t rounded = (bits + 0x7FFFu + (bits >> 16 & 1)) >> 16;
    return (uint16_t)(value != value ? bits >> 16 | 0x40u : rounded);
}

#endif
