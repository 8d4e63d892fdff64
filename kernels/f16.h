/* IEEE half precision on the host: 11 significant bits, from 2^-24 (2^-14 normal) to 65504. */
#ifndef TESSERA_KERNELS_F16_H
#define TESSERA_KERNELS_F16_H

#include <stdint.h>
#include <string.h>

static inline float f16_to_float(uint16_t value) {
    /* Exponent and mantissa in their places of a float32 give the value times 2^-112, exactly. */
    const uint32_t bits = (uint32_t)(value & 0x7FFF) << 13, special = (value & 0x7C00) == 0x7C00;
    float result, power = 0x1p112f;
    memcpy(&result, &bits, sizeof result);
    result *= power;
    uint32_t word;
    memcpy(&word, &result, sizeof word);
    word |= (uint32_t)(value & 0x8000) << 16 | special * 0x7F800000u;
    memcpy(&result, &word, sizeof result);
    return result;
}

/* Rounds to nearest, ties to even; from 65520 on to Inf. NaN stays NaN. */
static inline uint16_t f16_from_float(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    const uint32_t sign = bits >> 16 & 0x8000, size = bits & 0x7FFFFFFFu;
    const uint32_t normal = (size - 0x38000000u + 0xFFFu + (size >> 13 & 1)) >> 13;
    float tiny; /* below 2^-14: adding 0.5 rounds to multiples of 2^-24 */
    memcpy(&tiny, &size, sizeof tiny);
    tiny += 0.5f;
    uint32_t subnormal;
    memcpy(&subnormal, &tiny, sizeof subnormal);
    subnormal -= 0x3F000000u;
    const uint32_t finite = size < 0x38800000u ? subnormal : normal;
    const uint32_t special = size > 0x7F800000u ? 0x7E00 : 0x7C00;
    return (uint16_t)(sign | (size >= 0x477FF000u ? special : finite));
}

/* x, or the largest finite number of its sign if that is nearer to 0; NaN stays NaN. */
static inline float f16_bounded(float x) {
    const float most = 65504;
    return x > most ? most : x < -most ? -most : x;
}

#endif
