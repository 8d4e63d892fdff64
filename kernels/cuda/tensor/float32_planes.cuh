/* The float32 GEMM of the tensor cores: a block of 64 x 64 elements of C that a warpgroup has in
   registers, its planes and its column sums. */
#ifndef TESSERA_KERNELS_CUDA_TENSOR_FLOAT32_PLANES_CUH
#define TESSERA_KERNELS_CUDA_TENSOR_FLOAT32_PLANES_CUH

#include <cuda_fp16.h>

#include "kernels/cuda/ops/reduce.cuh"
#include "kernels/cuda/tensor/float32_ring.cuh"
#include "kernels/cuda/tensor/ldmatrix.cuh"

namespace float32 {

/* Registers of D (wgmma.cuh): x[j][2 h + e] is in row lane / 4 + 8 h of the 16 of the warp, and in column
   8 j + 2 (lane % 4) + e. */
typedef float fragment[8][4];

/* What the warps of a warpgroup tell each other. */
struct block_notes {
    float totals[4][64]; /* of columns */
    unsigned most[4], counts[4];
    unsigned columns[4][4]; /* of lanes % 4: 16 bits for what is not 0, 16 for what is large */
};
static_assert(sizeof(block_notes) <= NOTES_BYTES);

struct block_planes {
    static constexpr unsigned LOPSIDED = 1u << 31; /* of counts */
    static constexpr unsigned PITCH = 40;          /* floats */
    char *own;                                     /* of the warp: AREA_BYTES */
    block_notes &notes;
    const unsigned thread, lane, warp; /* of the warpgroup */
    const int group;

    /* `of_block`: threadIdx.x. */
    __device__ block_planes(char *shared, unsigned of_block)
        : own(shared + RING_BYTES + of_block / 32 * AREA_BYTES),
          notes(*(block_notes *)(shared + NOTES_AT + of_block / GROUP * NOTES_BYTES)),
          thread(of_block % GROUP), lane(thread % 32), warp(thread / 32), group(of_block / GROUP) {}

    __device__ void synchronize() const {
        asm volatile("bar.sync %0, %1;" : : "r"(1 + group), "n"(GROUP) : "memory");
    }

    /* The memory of the warp, as 32 columns of 16 rows: four of them in row 4 i + lane / 8, and the pair of
       x[j][2 h] of these columns. Neither has bank conflicts. */
    __device__ float4 &four(unsigned i) const {
        return *(float4 *)((float *)own + (4 * i + lane / 8) * PITCH + lane % 8 * 4);
    }
    __device__ float2 &pair(unsigned j, unsigned h) const {
        return *(float2 *)((float *)own + (lane / 4 + 8 * h) * PITCH + 8 * j + lane % 4 * 2);
    }

    /* Calls function(x, y) for each x of a fragment and the same element y of another block, of which each
       lane has eight float4, as four() places them. */
    template <typename F>
    __device__ void with_pairs(fragment &x, const float4 (&fours)[8], F function) const {
#pragma unroll
        for (unsigned q = 0; q < 8; q += 4) {
            __syncwarp();
#pragma unroll
            for (unsigned i = 0; i < 4; i++) four(i) = fours[q + i];
            __syncwarp();
#pragma unroll
            for (unsigned i = 0; i < 8; i++) {
                const float2 two = pair(i / 2, i % 2);
                function(x[q + i / 2][i % 2 * 2], two.x);
                function(x[q + i / 2][i % 2 * 2 + 1], two.y);
            }
        }
    }

    /* The reverse: calls function(i, x) for the eight float4 of a fragment that this lane gets: a warp stores
       whole lines of memory. */
    template <typename F> __device__ void each_four(const fragment &x, F function) const {
#pragma unroll
        for (unsigned q = 0; q < 8; q += 4) {
            __syncwarp();
#pragma unroll
            for (unsigned i = 0; i < 8; i++)
                pair(i / 2, i % 2) = make_float2(x[q + i / 2][i % 2 * 2], x[q + i / 2][i % 2 * 2 + 1]);
            __syncwarp();
#pragma unroll
            for (unsigned i = 0; i < 4; i++) function(q + i, four(i));
        }
    }

    /* The sums of the columns over the rows of the warp. */
    __device__ void put_totals(const fragment &x) const {
        float total[16];
#pragma unroll
        for (int i = 0; i < 16; i++) total[i] = x[i / 2][i % 2] + x[i / 2][2 + i % 2];
        halve<16>(total, lane & 16, 16);
        halve<8>(total, lane & 8, 8);
        halve<4>(total, lane & 4, 4);
        const unsigned j = (lane >> 4) * 4 + (lane >> 3 & 1) * 2 + (lane >> 2 & 1);
        *(float2 *)(notes.totals[warp] + j * 8 + lane % 4 * 2) = make_float2(total[0], total[1]);
    }

    /* Stores the sums of the columns, of which there are `width`, in a fixed order. */
    __device__ void store_totals(float *totals, size_t width) const {
        if (thread >= 64 || thread >= width) return;
        float total = notes.totals[0][thread];
        for (int w = 1; w < 4; w++) total += notes.totals[w][thread];
        totals[thread] = total;
    }

    __device__ void sum_columns(const fragment &x, float *totals, size_t width) const {
        put_totals(x);
        synchronize();
        store_totals(totals, width);
        synchronize();
    }

    /* The largest magnitudes of this thread in its two rows. */
    __device__ static void largest(const fragment &x, float (&of_row)[2]) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            of_row[h] = larger_magnitude(x[0][2 * h], x[0][2 * h + 1]);
#pragma unroll
            for (int j = 1; j < 8; j++)
                of_row[h] = larger_magnitude(of_row[h], larger_magnitude(x[j][2 * h], x[j][2 * h + 1]));
        }
    }

    /* Is a row of the warp, of four lanes each, lopsided? */
    __device__ static bool rows_are_lopsided(const float (&of_row)[2], float least) {
        bool lopsided = false;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            unsigned large = __ballot_sync(~0u, of_row[h] >= least),
                     nonzero = __ballot_sync(~0u, of_row[h] != 0);
            large |= large >> 1, nonzero |= nonzero >> 1;
            large |= large >> 2, nonzero |= nonzero >> 2;
            lopsided = lopsided || nonzero & ~large & 0x11111111;
        }
        return lopsided;
    }

    /* Of the rows of the warp, what the columns of this lane have: large << 16 | not 0, a bit each. */
    __device__ static unsigned columns_of(const fragment &x, float least) {
        float most[16], lowest = INFINITY;
#pragma unroll
        for (int i = 0; i < 16; i++) {
            most[i] = fmaxf(fabsf(x[i / 2][i % 2]), fabsf(x[i / 2][2 + i % 2]));
            lowest = fminf(lowest, most[i]);
        }
        /* mostly, some lane of each lane % 4 has large elements in all of its columns */
        unsigned all_large = __ballot_sync(~0u, lowest >= least);
        all_large |= all_large >> 16;
        all_large |= all_large >> 8;
        all_large |= all_large >> 4;
        if ((all_large & 15) == 15) return ~0u;
        unsigned columns = 0;
#pragma unroll
        for (int i = 0; i < 16; i++)
            columns |= (most[i] >= least ? 1u << (16 + i) : 0) | (most[i] != 0 ? 1u << i : 0);
#pragma unroll
        for (int lanes = 4; lanes < 32; lanes *= 2) columns |= __shfl_xor_sync(~0u, columns, lanes);
        return columns;
    }

    /* Writes the rows of the warp of both planes, 2 KB each, through its memory. */
    __device__ void store_planes(const fragment &x, float factor, char *high, char *low) const {
        const unsigned r = lane % 16;
        __syncwarp();
#pragma unroll
        for (int j = 0; j < 8; j += 2) {
            uint32_t of_high[4], of_low[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float left = x[j + i / 2][i % 2 * 2] * factor,
                            right = x[j + i / 2][i % 2 * 2 + 1] * factor;
                const __half2 h = __floats2half2_rn(left, right),
                              l = __floats2half2_rn(left - __low2float(h), right - __high2float(h));
                of_high[i] = *(const uint32_t *)&h, of_low[i] = *(const uint32_t *)&l;
            }
            char *const unit = own + r * 128 + ((j + lane / 16) ^ r % 8) * 16;
            stmatrix_x4(unit, of_high);
            stmatrix_x4(unit + 16 * 128, of_low);
        }
        __syncwarp();
#pragma unroll
        for (unsigned i = 0; i < 4; i++) {
            const unsigned at = i * 512 + lane * 16;
            *(uint4 *)(high + warp * 2048 + at) = *(const uint4 *)(own + at);
            *(uint4 *)(low + warp * 2048 + at) = *(const uint4 *)(own + 2048 + at);
        }
    }

    /* The first thread: what the block raises. */
    __device__ unsigned raised(unsigned most) const {
        unsigned counts = 0, lopsided = 0;
        for (int w = 0; w < 4; w++) {
            unsigned columns = 0;
            for (int other = 0; other < 4; other++) columns |= notes.columns[other][w];
            counts += notes.counts[w] & ~LOPSIDED;
            lopsided |= (notes.counts[w] & LOPSIDED) | (columns & ~(columns >> 16) & 0xffff);
        }
        return guard_bits(most, lopsided, counts);
    }

    /* Writes the planes of the block, as planes.cu does, and the sums of its columns unless `totals` is NULL.
       Returns the bits that it raises to the first thread, 0 to others. */
    __device__ unsigned write(const fragment &x, const planes &to, size_t block, float *totals,
                              size_t width) const {
        float of_row[2];
        largest(x, of_row);
        const unsigned of_warp = largest_of_warp(__float_as_uint(larger_magnitude(of_row[0], of_row[1])));
        if (lane == 0) notes.most[warp] = of_warp;
        if (totals) put_totals(x);
        synchronize();
        if (totals) store_totals(totals, width);
        const unsigned most = max(max(notes.most[0], notes.most[1]), max(notes.most[2], notes.most[3]));
        const int exponent = scale_exponent(most);
        char *const high = to.blocks + block * PLANE_BYTES;
        store_planes(x, power_of_two(exponent), high, high + to.count() * PLANE_BYTES);
        const float least = __uint_as_float(lopsided_below(most));
        const bool lopsided = rows_are_lopsided(of_row, least);
        const unsigned columns = columns_of(x, least), counts = sum_of_warp(count_small(x, most));
        if (lane < 4) notes.columns[warp][lane] = columns;
        if (lane == 0) notes.counts[warp] = counts | (lopsided ? LOPSIDED : 0);
        synchronize();
        if (thread) return 0;
        const unsigned bits = raised(most);
        to.codes[block] = code_of(exponent, bits);
        return bits;
    }
};

} // namespace float32

#endif
