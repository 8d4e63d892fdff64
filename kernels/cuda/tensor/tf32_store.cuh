/* The GEMM of TF32 for more than 128 rows: from sums in registers to C, with the epilogues. */
#ifndef TESSERA_KERNELS_CUDA_TENSOR_TF32_STORE_CUH
#define TESSERA_KERNELS_CUDA_TENSOR_TF32_STORE_CUH

#include "kernels/cuda/ops/reduce.cuh"
#include "kernels/cuda/tensor/bf16_store.cuh"
#include "kernels/cuda/tensor/tf32.cuh"
#include "kernels/cuda/tensor/tf32_fragments.cuh"

namespace tf32 {

static const unsigned PART = 32; /* columns of a tile that are stored at a time */

/* A warp that stores its 16 x N sums of each tile. The sums of NN are those of C^T: a row of the tile is a
   column of C. A lane has two neighbouring rows (transposed_row), of each eight columns two neighbours. */
template <enum gemm_op OP, int N> struct tile_store {
    typedef tf32_product product;
    static constexpr bool PARTS = true; /* k may be in parts */
    const product &p;
    unsigned group, warp;   /* of the block; of the group */
    bool stores;            /* not if another part of k has the sums */
    unsigned row0, column0; /* the first ones of this lane */
    unsigned row_of_group, column_of_tile;
    float2 read[4][2]; /* what the backward epilogue reads of a part */

    __device__ tile_store(const product &product, char *, uint64_t *) : p(product) {
        const unsigned index = uniform(threadIdx.x / 32);
        group = index / 4;
        warp = index % 4;
    }

    static __device__ unsigned lane() {
        return threadIdx.x % 32;
    }

    __device__ void begin(unsigned row, unsigned column) {
        row_of_group = row + group * 64;
        row0 = row_of_group + transposed_row(warp, lane());
        column_of_tile = column;
        column0 = column + lane() % 4 * 2;
    }

    __device__ void request() const {}

    /* Beside the last products. */
    __device__ void prepare() {
        if (OP == GEMM_NT && stores && p.epilogue == BF16_BACKWARD) request_part(0);
    }

    /* Parts with columns that are inside. */
    __device__ unsigned parts_inside() const {
        return min(N / PART, (p.n - column_of_tile + PART - 1) / PART);
    }

    __device__ void store_plain(const float (&sums)[N / 2]) const {
#pragma unroll
        for (int j = 0; j < N / 8; j++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const unsigned row = row0 + h, column = column0 + 8 * j;
                if (row < p.m && column < p.n)
                    *(float2 *)(p.to + row * p.ld + column) =
                        make_float2(p.alpha * sums[4 * j + 2 * h], p.alpha * sums[4 * j + 2 * h + 1]);
            }
    }

    template <enum activation A> __device__ void store_forward(const float (&sums)[N / 2]) const {
        const bool inside = row0 < p.m;
        const float2 bias = p.bias && inside ? *(const float2 *)(p.bias + row0) : float2();
#pragma unroll 1
        for (unsigned part = 0, parts = parts_inside(); part < parts; part++) {
            float some[16];
            bf16::select(some, sums, part);
#pragma unroll
            for (int j = 0; j < 4; j++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const unsigned row = column0 + part * PART + 8 * j + e;
                    const float x = fmaf(p.alpha, some[4 * j + e], bias.x),
                                y = fmaf(p.alpha, some[4 * j + 2 + e], bias.y);
                    if (row >= p.n || !inside) continue;
                    if (p.to_pre) *(float2 *)(p.to_pre + row * p.ld + row0) = make_float2(x, y);
                    *(float2 *)(p.to + row * p.ld + row0) = make_float2(activate(A, x), activate(A, y));
                }
        }
    }

    /* Requests what the backward epilogue reads of a part. */
    __device__ void request_part(unsigned part) {
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const unsigned row = row0 + h, column = column0 + part * PART + 8 * j;
                const float *const from = p.derived_from + row * p.ld + column;
                read[j][h] = row < p.m && column < p.n ? *(const float2 *)from : float2();
            }
    }

    /* Stores a part, as rows of C, of C^T, or both. */
    __device__ void store_part(const float (&some)[16], unsigned part) const {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const unsigned column = column0 + part * PART + 8 * j;
            if (column >= p.n) continue;
#pragma unroll
            for (int i = 0; i < 2; i++) {
                if (p.transposed && row0 < p.m)
                    *(float2 *)(p.transposed + (column + i) * p.ld_transposed + row0) =
                        make_float2(some[4 * j + i], some[4 * j + 2 + i]);
                if (p.to && row0 + i < p.m)
                    *(float2 *)(p.to + (row0 + i) * p.ld + column) =
                        make_float2(some[4 * j + 2 * i], some[4 * j + 2 * i + 1]);
            }
        }
    }

    /* Stores the sums of the columns of a part over the rows of the warp. `totals`: of the two rows of a
       lane. */
    __device__ void store_sums(float (&totals)[8], unsigned part) const {
        const unsigned kept = lane() / 4; /* of the totals, by this lane */
        halve<8>(totals, kept & 4, 16);
        halve<4>(totals, kept & 2, 8);
        halve<2>(totals, kept & 1, 4);
        const unsigned column = column0 + part * PART + kept / 2 * 8 + kept % 2;
        if (column < p.n)
            p.partials[(size_t)(row_of_group / TF32_SUMMED_ROWS + warp) * p.n + column] = totals[0];
    }

    template <enum activation A> __device__ void store_backward(const float (&sums)[N / 2]) {
#pragma unroll 1
        for (unsigned part = 0, parts = parts_inside(); part < parts; part++) {
            float some[16], totals[8] = {};
            bf16::select(some, sums, part);
#pragma unroll
            for (int j = 0; j < 4; j++)
#pragma unroll
                for (int h = 0; h < 2; h++)
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        const float y = e ? read[j][h].y : read[j][h].x;
                        float &x = some[4 * j + 2 * h + e];
                        x *= p.alpha * derivative(A, y, y);
                        totals[2 * j + e] += row0 + h < p.m ? x : 0;
                    }
            if (part + 1 < parts) request_part(part + 1);
            store_part(some, part);
            store_sums(totals, part);
        }
    }

    __device__ void store(const float (&sums)[N / 2]) {
        if (!stores || row_of_group >= p.m) return;
        if constexpr (OP == GEMM_NN)
            with_activation(
                p.activation, [&]<enum activation A>() { store_forward<A>(sums); });
        else if (OP == GEMM_NT && p.epilogue == BF16_BACKWARD)
            with_activation(
                p.activation, [&]<enum activation A>() { store_backward<A>(sums); });
        else
            store_plain(sums);
    }
};

} // namespace tf32

#endif
