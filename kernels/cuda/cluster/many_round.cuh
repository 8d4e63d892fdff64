/* Points and centres in the formats of the tensor cores, and the error of their scores (many.cu). */
#ifndef TESSERA_KERNELS_CUDA_CLUSTER_MANY_ROUND_CUH
#define TESSERA_KERNELS_CUDA_CLUSTER_MANY_ROUND_CUH

#include <cuda_fp16.h>

#include "kernels/cuda/cluster/many.cuh"
#include "kernels/cuda/ops/element.cuh"

namespace many {

/* The format of the products. Exact labels need the error of the scores. */
template <wgmma_format FORMAT> struct format {
    static constexpr bool CERTIFIES = FORMAT == WGMMA_F16;
    static constexpr int BYTES = FORMAT == WGMMA_TF32 ? 4 : 2, UNIT = 16 / BYTES; /* elements of a unit */
};

/* A value in the format; *rounded is it as float. */
template <wgmma_format FORMAT> __device__ __forceinline__ uint32_t encode(float value, float *rounded) {
    uint32_t bits = 0;
    if constexpr (FORMAT == WGMMA_F16) {
        const __half half = __float2half_rn(value);
        *rounded = __half2float(half);
        bits = __half_as_ushort(half);
    } else if constexpr (FORMAT == WGMMA_BF16) {
        const __nv_bfloat16 brief = __float2bfloat16_rn(value);
        *rounded = __bfloat162float(brief);
        bits = __bfloat16_as_ushort(brief);
    } else {
        bits = (__float_as_uint(value) + 0x1000u) & ~0x1fffu;
        *rounded = __uint_as_float(bits);
    }
    return bits;
}

/* A unit of 16 bytes. Adds the squares of the values and of their errors. */
template <wgmma_format FORMAT>
__device__ __forceinline__ uint4 encode_unit(const float (&value)[format<FORMAT>::UNIT], float *squares,
                                             float *errors) {
    uint32_t words[4] = {};
#pragma unroll
    for (int i = 0; i < format<FORMAT>::UNIT; i++) {
        float rounded;
        const uint32_t bits = encode<FORMAT>(value[i], &rounded);
        words[i * format<FORMAT>::BYTES / 4] |= bits << i * format<FORMAT>::BYTES * 8 % 32;
        *squares = fmaf(value[i], value[i], *squares);
        *errors = fmaf(value[i] - rounded, value[i] - rounded, *errors);
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
   in float32, of at most 2^11 terms each. */
__device__ __forceinline__ float row_error(float squares, float errors, float factor, unsigned steps,
                                           const centre_facts &facts) {
    const double norm = nearest_few_norm(squares), error = nearest_few_norm(errors) + 0x1p-22 * norm,
                 other = 1.01 * norm + error, f = factor;
    const double relative = f * (error + other * facts.relative + (step_error(steps) + 0x1p-21) * other);
    const double all =
        relative * relative / (1.96 * facts.share) + f * other * facts.floor + 0x1p-60 * (1 + f);
    return __double2float_ru(1.0001 * all);
}

} // namespace many

#endif
