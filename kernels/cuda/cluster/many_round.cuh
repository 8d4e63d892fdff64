/* Points and centres in the formats of the tensor cores, and the error of their scores (many.cu). */
#ifndef TESSERA_KERNELS_CUDA_CLUSTER_MANY_ROUND_CUH
#define TESSERA_KERNELS_CUDA_CLUSTER_MANY_ROUND_CUH

#include <cuda_fp16.h>
#include <string.h>

#include "kernels/cuda/cluster/many.cuh"
#include "kernels/cuda/ops/element.cuh"

namespace many {

/* The format of the products. Exact labels need the error of the scores. */
template <wgmma_format FORMAT> struct format {
    static constexpr bool CERTIFIES = FORMAT == WGMMA_F16;
    static constexpr int BYTES = FORMAT == WGMMA_TF32 ? 4 : 2, UNIT = 16 / BYTES; /* elements of a unit */
};

/* Two values in the format, in `words`; first and second become what they are rounded to. */
template <wgmma_format FORMAT>
__device__ __forceinline__ void encode(float &first, float &second, uint32_t *words) {
    if constexpr (FORMAT == WGMMA_F16) {
        const __half2 pair = __floats2half2_rn(first, second);
        memcpy(words, &pair, sizeof pair);
        first = __low2float(pair);
        second = __high2float(pair);
    } else if constexpr (FORMAT == WGMMA_BF16) {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
        memcpy(words, &pair, sizeof pair);
        first = __low2float(pair);
        second = __high2float(pair);
    } else {
        words[0] = (__float_as_uint(first) + 0x1000u) & ~0x1fffu;
        words[1] = (__float_as_uint(second) + 0x1000u) & ~0x1fffu;
        first = __uint_as_float(words[0]);
        second = __uint_as_float(words[1]);
    }
}

/* A unit of 16 bytes. Adds the squares of the values and of their errors. */
template <wgmma_format FORMAT>
__device__ __forceinline__ uint4 encode_unit(const float (&value)[format<FORMAT>::UNIT], float *squares,
                                             float *errors) {
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < format<FORMAT>::UNIT; i += 2) {
        float rounded[2] = {value[i], value[i + 1]};
        encode<FORMAT>(rounded[0], rounded[1], words + i * format<FORMAT>::BYTES / 4);
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const float error = value[i + e] - rounded[e];
            *squares = fmaf(value[i + e], value[i + e], *squares);
            *errors = fmaf(error, error, *errors);
        }
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
}

/* The byte of unit `unit` of row `row` of an operand with `rows` rows in chunks of 128 bytes. */
__device__ __forceinline__ size_t unit_offset(unsigned rows, unsigned row, unsigned unit) {
    return ((size_t)(unit / UNITS) * rows + row) * CHUNK + ((unit ^ row) % UNITS) * 16;
}

/* The exponent of the scale that makes vectors of norm < `norm` shorter than 2^TOP. */
template <typename T> __device__ __forceinline__ int scale_exponent(double norm) {
    const int least = sizeof(T) == 4 ? -112 : -1000, most = sizeof(T) == 4 ? 140 : 1020;
    const int above = (int)(((unsigned long long)__double_as_longlong(norm) >> 52) & 2047) - 1022;
    return TOP - (above < least ? least : above > most ? most : above);
}

template <typename T> __device__ __forceinline__ T power_of_two(int exponent) {
    return (T)__longlong_as_double((long long)(exponent + 1023) << 52);
}

/* The scale of the centres, which are at most norm, and their mean too. */
template <typename T> __device__ __forceinline__ int centre_exponent(double norm) {
    return scale_exponent<T>(2.02 * norm);
}

/* The scale of a row, and what its sums are multiplied with to be in the units of the centres. */
struct row_scale {
    int exponent;
    float factor;
    bool in_range;
};

template <typename T> __device__ __forceinline__ row_scale scale_of_row(double norm, double centre_norm) {
    const int exponent = scale_exponent<T>(norm + 1.01 * centre_norm),
              difference = centre_exponent<T>(centre_norm) - exponent;
    const bool in_range = difference >= -100 && difference <= 100;
    return {exponent,
            power_of_two<float>(difference < -100  ? -100
                                : difference > 100 ? 100
                                                   : difference),
            in_range};
}

/* Bounds what a score of a row can be above the computed one: Q of many.cuh. `squares` and `errors` are sums
   in float32, of at most 2^11 terms each, and what underflows in them is below 1e-17; the thousandth more
   covers the roundings here. */
__device__ __forceinline__ float row_error(float squares, float errors, float factor, unsigned steps,
                                           const centre_facts &facts) {
    const float norm = sqrtf(squares) * 1.0002f + 1e-17f,
                error = sqrtf(errors) * 1.0002f + 1e-17f + 0x1p-22f * norm, other = 1.01f * norm + error;
    const float relative =
        factor * (error + other * ((float)(facts.relative + step_error(steps)) + 0x1p-21f));
    return 1.001f * (relative * relative / (1.96f * (float)facts.share) +
                     factor * other * (float)facts.floor + 0x1p-60f * (1 + factor));
}

} // namespace many

#endif
