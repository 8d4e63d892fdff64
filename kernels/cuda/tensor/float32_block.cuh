/* Planes of a block of 64 x 64 elements of C, for kernels that do not multiply on tensor cores. */
#ifndef TESSERA_KERNELS_CUDA_TENSOR_FLOAT32_BLOCK_CUH
#define TESSERA_KERNELS_CUDA_TENSOR_FLOAT32_BLOCK_CUH

#include <cuda_fp16.h>

#include "kernels/cuda/tensor/planes.cuh"

namespace float32 {

static const unsigned BLOCK_THREADS = 128, AREA_FLOATS = 16 * 64; /* of a warp */

struct block_memory {
    float all[4 * AREA_FLOATS];
    unsigned of_warp[4];
};

/* A thread block of 128 threads. Each warp has 16 rows in its own memory, which other warps read for
   extremes of columns alone. A thread has eight float4 (fours), two rows apart, in the same columns. */
struct block_area {
    static constexpr unsigned FOURS = 8;
    static constexpr unsigned LOPSIDED = 1u << 31;

    float *all, *own;  /* of the block: [4 warps][16][64]; of the warp */
    unsigned *of_warp; /* [4 warps]: counts of elements, and LOPSIDED */
    const int lane, warp;

    __device__ explicit block_area(block_memory &memory)
        : all(memory.all), own(all + threadIdx.x / 32 * AREA_FLOATS), of_warp(memory.of_warp),
          lane(threadIdx.x % 32), warp(threadIdx.x / 32) {}

    /* In the block, of the fours of this thread. */
    __device__ unsigned row(unsigned i) const {
        return warp * 16 + i * 2 + lane / 16;
    }
    __device__ unsigned column() const {
        return lane % 16 * 4;
    }
    __device__ float4 *four(unsigned i) const {
        return (float4 *)&at(i * 2 + lane / 16, column());
    }
    /* An element of the 16 rows of this warp. */
    __device__ float &at(unsigned row_in_warp, unsigned column) const {
        return own[row_in_warp * 64 + (column ^ (row_in_warp & 3) << 3)];
    }

    /* To the warp's memory: the largest magnitude of each column. */
    __device__ void put_columns(const float (&x)[FOURS][4]) const {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float most = 0;
#pragma unroll
            for (unsigned i = 0; i < FOURS; i++) most = larger_magnitude(most, x[i][e]);
            most = larger_magnitude(most, __shfl_down_sync(0xffffffffu, most, 16));
            if (lane < 16) own[column() + e] = most;
        }
    }

    /* The largest magnitude of the block; lopsided: a column is. */
    __device__ unsigned extremes(bool &lopsided) const {
        unsigned most[2] = {};
        for (int c = 0; c < 2; c++)
            for (int w = 0; w < 4; w++)
                most[c] = max(most[c], __float_as_uint(all[w * AREA_FLOATS + c * 32 + lane]));
        const unsigned all_most = largest_of_warp(max(most[0], most[1]));
        lopsided = is_lopsided(most[0], all_most) || is_lopsided(most[1], all_most);
        return all_most;
    }

    /* Is a row of the warp lopsided? All lanes return the same. */
    __device__ bool rows_are_lopsided(const float (&x)[FOURS][4], unsigned most) const {
        const float least = __uint_as_float(lopsided_below(most));
        bool lopsided = false;
#pragma unroll
        for (unsigned i = 0; i < FOURS; i++) {
            const float largest =
                fmaxf(fmaxf(fabsf(x[i][0]), fabsf(x[i][1])), fmaxf(fabsf(x[i][2]), fabsf(x[i][3])));
            const unsigned large = __ballot_sync(0xffffffffu, largest >= least);
            if (large & 0xffff && large >> 16) continue;
            const unsigned nonzero = __ballot_sync(0xffffffffu, largest != 0);
            lopsided =
                lopsided || (nonzero & 0xffff && !(large & 0xffff)) || (nonzero >> 16 && !(large >> 16));
        }
        return lopsided;
    }

    /* Writes the planes of the elements of this thread. */
    __device__ void store_planes(const planes &to, size_t block, const float (&x)[FOURS][4],
                                 float factor) const {
        char *const high = to.blocks + block * PLANE_BYTES, *const low = high + to.count() * PLANE_BYTES;
#pragma unroll
        for (unsigned i = 0; i < FOURS; i++) {
            const unsigned r = row(i), at = r * 128 + ((lane % 16 / 2) ^ r % 8) * 16 + lane % 2 * 8;
            alignas(8) __half2 h[2], l[2];
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const float left = x[i][2 * e] * factor, right = x[i][2 * e + 1] * factor;
                h[e] = __floats2half2_rn(left, right);
                l[e] = __floats2half2_rn(left - __low2float(h[e]), right - __high2float(h[e]));
            }
            *(uint2 *)(high + at) = *(const uint2 *)h;
            *(uint2 *)(low + at) = *(const uint2 *)l;
        }
    }

    /* Writes the planes of a block of these elements, as planes.cu does. Returns the bits that it raises
       to the first thread, 0 to others. */
    __device__ unsigned split(const float (&x)[FOURS][4], const planes &to, size_t block) const {
        put_columns(x);
        __syncthreads();
        bool lopsided;
        const unsigned most = extremes(lopsided);
        lopsided = __any_sync(0xffffffffu, lopsided) || rows_are_lopsided(x, most);
        unsigned counts = sum_of_warp(count_small(x, most));
        if (lane == 0) of_warp[warp] = counts | (lopsided ? LOPSIDED : 0);
        const int exponent = scale_exponent(most);
        store_planes(to, block, x, power_of_two(exponent));
        __syncthreads();
        if (threadIdx.x) return 0;
        counts = 0, lopsided = false;
        for (int w = 0; w < 4; w++) {
            counts += of_warp[w] & ~LOPSIDED;
            lopsided = lopsided || of_warp[w] & LOPSIDED;
        }
        const unsigned raised = guard_bits(most, lopsided, counts);
        to.codes[block] = code_of(exponent, raised);
        return raised;
    }
};

} // namespace float32

#endif
