/* The GEMM of TF32 for more than 128 rows: from sums in registers to C, with the epilogues. */
#ifndef TESSERA_KERNELS_CUDA_TENSOR_TF32_STORE_CUH
#define TESSERA_KERNELS_CUDA_TENSOR_TF32_STORE_CUH

#include "kernels/cuda/tensor/bf16_store.cuh"
#include "kernels/cuda/tensor/tf32.cuh"
#include "kernels/cuda/tensor/tf32_fragments.cuh"

namespace tf32 {

static const unsigned PART = 32; /* columns of a tile that are stored at a time */

/* A warp that stores its 16 x N sums of each tile. The sums of NN are those of C^T: a row of the tile is a
   column of C. Of NN and TN a lane has two rows that are neighbours (transposed_row), of NT two that are
   eight apart. */
template <enum gemm_op OP, int N> struct tile_store {
    typedef tf32_product product;
    static constexpr bool PARTS = true;                     /* k may be in parts */
    static constexpr unsigned NEXT = OP == GEMM_NT ? 8 : 1; /* from one row of a lane to the other */
    const product &p;
    unsigned group, warp;   /* of the block; of the group */
    bool stores;            /* not if another part of k has the sums */
    unsigned row0, column0; /* the first ones of this lane */
    unsigned row_of_warp, column_of_tile;
    float *rows, *columns; /* shared memory of the warp: 16 rows of a part, and its columns */
    float2 read[4][2];     /* what the backward epilogue reads of a part */

    __device__ tile_store(const product &product, char *slots_of_block, uint64_t *) : p(product) {
        const unsigned index = uniform(threadIdx.x / 32);
        group = index / 4;
        warp = index % 4;
        rows = (float *)(slots_of_block + index * bf16::SLOTS * bf16::SLOT_BYTES);
        columns = rows + 16 * PART;
    }

    static __device__ unsigned lane() {
        return threadIdx.x % 32;
    }

    __device__ void begin(unsigned row, unsigned column) {
        row_of_warp = row + group * 64 + (OP == GEMM_NT ? warp * 16 : transposed_row(warp, 0));
        row0 = OP == GEMM_NT ? row_of_warp + lane() / 4 : row + group * 64 + transposed_row(warp, lane());
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
                const unsigned row = row0 + h * NEXT, column = column0 + 8 * j;
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
                const unsigned row = row0 + h * NEXT, column = column0 + part * PART + 8 * j;
                const float *const from = p.derived_from + row * p.ld + column;
                read[j][h] = row < p.m && column < p.n ? *(const float2 *)from : float2();
            }
    }

    /* Rows are lines of 128 bytes, columns of 64 bytes, whose units of 16 bytes are swizzled so that no
       access has bank conflicts. */
    __device__ float *in_row(unsigned row, unsigned column) const {
        return rows + row * PART + ((column / 4 ^ row % 4 * 2) << 2) + column % 4;
    }
    __device__ float *in_column(unsigned column, unsigned row) const {
        return columns + column * 16 + ((row / 4 ^ column / 2 % 4) << 2) + row % 4;
    }

    /* Stores a part, four neighbours of a row at a time: eight lanes have a row. */
    __device__ void store_rows(const float (&some)[16], unsigned part) const {
#pragma unroll
        for (int i = 0; i < 8; i++) /* column group i / 2, row + 8 (i % 2) */
            *(float2 *)in_row(lane() / 4 + i % 2 * 8, i / 2 * 8 + lane() % 4 * 2) =
                make_float2(some[2 * i], some[2 * i + 1]);
        __syncwarp();
        const unsigned column = lane() % 8 * 4, to = column_of_tile + part * PART + column;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const unsigned row = i * 4 + lane() / 8;
            if (row_of_warp + row < p.m && to < p.n)
                *(float4 *)(p.to + (row_of_warp + row) * p.ld + to) = *(const float4 *)in_row(row, column);
        }
    }

    /* Stores it as rows of C^T, and the sums of its columns: four lanes have a column. */
    __device__ void store_columns(const float (&some)[16], unsigned part) const {
        const unsigned swap = lane() % 2; /* so that two neighbours of a row are in all banks */
#pragma unroll
        for (int i = 0; i < 8; i++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                *in_column(i / 2 * 8 + lane() % 4 * 2 + (e ^ swap), lane() / 4 + i % 2 * 8) =
                    swap ? some[2 * i + 1 - e] : some[2 * i + e];
        __syncwarp();
        const unsigned row = lane() % 4 * 4;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const unsigned column = i * 8 + lane() / 4, to = column_of_tile + part * PART + column;
            const float4 four = *(const float4 *)in_column(column, row);
            float total = four.x + four.y + (four.z + four.w);
            total += __shfl_xor_sync(~0u, total, 1);
            total += __shfl_xor_sync(~0u, total, 2);
            if (to >= p.n) continue;
            if (p.transposed) *(float4 *)(p.transposed + to * p.ld_transposed + row_of_warp + row) = four;
            if (row == 0) p.partials[(size_t)(row_of_warp / BF16_SUMMED_ROWS) * p.n + to] = total;
        }
    }

    template <enum activation A> __device__ void store_backward(const float (&sums)[N / 2]) {
#pragma unroll 1
        for (unsigned part = 0, parts = parts_inside(); part < parts; part++) {
            float some[16];
            bf16::select(some, sums, part);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const float2 y = read[i / 2][i % 2];
                some[2 * i] *= p.alpha * derivative(A, y.x, y.x);
                some[2 * i + 1] *= p.alpha * derivative(A, y.y, y.y);
            }
            if (part + 1 < parts) request_part(part + 1);
            __syncwarp(); /* all have read the last part */
            store_rows(some, part);
            store_columns(some, part);
        }
    }

    __device__ void store(const float (&sums)[N / 2]) {
        if (!stores || row_of_warp >= p.m) return;
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
